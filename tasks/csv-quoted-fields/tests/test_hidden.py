import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from csvtext import CsvError, parse
from table import column, load


class TestCsv(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(load("a,b\n1,2\n\n3,4\n"), [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}])
        self.assertEqual(load(""), [])

    def test_commas_in_quotes(self):
        self.assertEqual(parse('x,"1,2",y'), [["x", "1,2", "y"]])

    def test_doubled_quotes(self):
        self.assertEqual(parse('"say ""hi"""'), [['say "hi"']])
        self.assertEqual(parse('"""",""'), [['"', ""]])

    def test_line_breaks_in_quotes(self):
        self.assertEqual(column('n,t\n1,"one\ntwo"\n2,three\n', "t"), ["one\ntwo", "three"])
        self.assertEqual(parse('"a\n\nb",c'), [["a\n\nb", "c"]])

    def test_windows_line_ends(self):
        self.assertEqual(parse("a,b\r\nc,d\r\n"), [["a", "b"], ["c", "d"]])

    def test_errors(self):
        self.assertRaises(CsvError, parse, 'a\n"b')
        self.assertRaises(CsvError, load, "a,b\n1")


if __name__ == "__main__":
    unittest.main()
