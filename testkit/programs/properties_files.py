"""Properties files of many kinds, and what Java reads in these files."""

LISTENERS = "PLAINTEXT://localhost:9092"
FILES = {
    "plain": ("# a comment\n! another\n\n a = 1\nb:2\nc=x=y\nempty=\n", {"a": "1", "b": "2", "c": "x=y", "empty": ""}),
    "continued": ("long=one,\\\n   two\nnext=3", {"long": "one,two", "next": "3"}),
    "continued by an empty line": ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
    "continued by the end": ("a=1\\", {"a": "1"}),
    "a comment that ends in a backslash": ("# one\\\na=1\n", {"a": "1"}),
    "a line that continues with a number sign": ("a=1\\\n#2", {"a": "1#2"}),
    "two backslashes at the end": ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
    "three backslashes at the end": ("a=1\\\\\\\nb=2", {"a": "1\\b=2"}),
    "blanks between": (
        f"listeners {LISTENERS}\na\t 1\nb  =  2\nc  3=4",
        {"listeners": LISTENERS, "a": "1", "b": "2", "c": "3=4"},
    ),
    "a name alone": ("a", {"a": ""}),
    "escaped by a program": ("listeners=PLAINTEXT\\://localhost\\:9092\n", {"listeners": LISTENERS}),
    "an escaped name": ("a\\=b\\ c\\:d=1", {"a=b c:d": "1"}),
    "escapes": ("a=\\u0041\\tx\\q\\\\y", {"a": "A\txq\\y"}),
    "a name twice": ("a=1\na=2", {"a": "2"}),
    "ends of lines": ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
    "characters that end a line elsewhere": ("a=x\u2028y\u0085z\x0bw\nb=2", {"a": "x\u2028y\u0085z\x0bw", "b": "2"}),
}
