from mixerloop.messages import one_line, printable


def test_a_message_of_several_lines_is_one_line():
    assert one_line("first\n  second\r\n\n third ") == "first second third"


def test_spaces_in_a_name_are_kept():
    assert one_line("a  b.toml: gone") == "a  b.toml: gone"


def test_a_long_message_is_cut():
    assert one_line("x" * 2000) == "x" * 997 + "..."


def test_whatever_a_terminal_would_not_print_is_escaped():
    assert printable("a\tb\x1b[0m\x9b\u202e\udcff") == "a\\tb\\x1b[0m\\x9b\\u202e\\udcff"
    assert printable("é 日本語") == "é 日本語"
