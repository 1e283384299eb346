"""rdma-core's own test suite of pyverbs, from the directory that is named: one line for each test, `OUTCOME NAME`."""

import os
import sys
import unittest
from importlib.machinery import SourceFileLoader


class Lines(unittest.TestResult):
    """Tells each outcome when it is known."""

    def tell(self, outcome, test):
        print(outcome, test.id(), flush=True)

    def addSuccess(self, test):
        self.tell("ok", test)

    def addSkip(self, test, reason):
        self.tell("skipped", test)

    def addFailure(self, test, err):
        self.tell("failed", test)

    def addError(self, test, err):
        self.tell("failed", test)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.tell("failed", test)


directory = sys.argv[1]
sys.path.insert(0, directory)
from args_parser import parser  # noqa: E402, of the suite

sys.argv = ["run_tests.py", "--dev", "uwarp0"]
module = SourceFileLoader("tests", os.path.join(directory, "__init__.py")).load_module()
parser.parse_args()
unittest.defaultTestLoader.loadTestsFromModule(module).run(Lines())
