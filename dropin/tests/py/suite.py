"""Runs the test suite of pyverbs from the directory in the first argument. Prints `OUTCOME NAME` per test.

The second argument is an IP address of this machine. The suite would ask a kernel driver for it."""

import os
import sys
import unittest
from importlib.machinery import SourceFileLoader


class Lines(unittest.TestResult):
    """Prints each outcome at once."""

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


directory, address = sys.argv[1:]
sys.path.insert(0, directory)
from args_parser import parser  # noqa: E402, a module of the suite

sys.argv = ["run_tests.py", "--dev", "uwarp0"]
module = SourceFileLoader("tests", os.path.join(directory, "__init__.py")).load_module()
parser.parse_args()


def addressed(self, dev, port, idx):
    self.args.append([dev, port, idx, address, None])


sys.modules["tests.base"].RDMATestCase._get_ip_mac = addressed
unittest.defaultTestLoader.loadTestsFromModule(module).run(Lines())
