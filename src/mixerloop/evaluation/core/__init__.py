"""CORE, the 22 tasks of DataComp-LM: reading, prompting, scoring, and figures with intervals."""
