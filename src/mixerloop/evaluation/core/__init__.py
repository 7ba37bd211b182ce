"""CORE, the 22 tasks of DataComp-LM: what is asked, how it is scored, what the score means."""
