#!/usr/bin/python3
"""Runs the tests of rdma-core that Debian ships with python3-pyverbs on one device.

For each test it prints one line: name, verdict and, unless it is ok, the reason, with tabs between them. Verdicts
are ok, skip, fail, error, crash (a signal ended the process) and timeout. Each test is a process of its own, in a
process group of its own, which is killed when the test has ended or has taken too long. With --skipped those that
are known to be skipped are tried in one process first, as most are, and a process for each takes long in an emulated
machine.

Two things are otherwise than in rdma-core's run_tests.py, because nearly all tests would be skipped on siw, which has
no PCI function: the GID is number 0, although its last eight octets are zero, and the address is that of --address.
Tests of drivers (mlx5, efa) and of CUDA are left out.
"""
import argparse
import contextlib
import copy
import gzip
import importlib
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest

SOURCE = '/usr/share/doc/rdma-core/tests'
FOREIGN = ('test_mlx5', 'test_efa', 'test_cuda')


def unpack(source, to):
    """Copies the tests, uncompressed, without those of FOREIGN; what these share, others import, too."""
    os.mkdir(to)
    for name in sorted(os.listdir(source)):
        plain = name.removesuffix('.gz')
        if not plain.endswith('.py') or plain.startswith(FOREIGN):
            continue
        opener = gzip.open if name != plain else open
        with opener(os.path.join(source, name), 'rb') as f, open(os.path.join(to, plain), 'wb') as g:
            shutil.copyfileobj(f, g)


def load(folder, device, config):
    """Imports the tests, configured for the device, and returns them in the order of their names.

    Their address is config['address'].
    """
    sys.dont_write_bytecode = True
    sys.path[:0] = [os.path.dirname(folder), folder]
    import args_parser
    sys.modules['tests.args_parser'] = args_parser
    sys.argv = [sys.argv[0], '--dev', device, '--port', '1', '--gid', '0']
    args_parser.parser.parse_args()
    base = importlib.import_module('tests.base')
    base.RDMATestCase._get_ip_mac = lambda self, dev, port, gid: self.args.append(
        [dev, port, gid, config['address'], '02:00:00:00:00:01'])
    found = []

    def flatten(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                flatten(test)
            else:
                found.append(test)

    for name in sorted(os.listdir(folder)):
        if name.startswith('test_'):
            flatten(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module('tests.' + name[:-3])))
    return sorted(found, key=lambda test: test.id())


class Verdict(unittest.TestResult):
    """The verdict on one test: the first that is not ok."""
    verdict, reason = 'ok', ''

    def set(self, verdict, reason):
        if self.verdict == 'ok':
            self.verdict, self.reason = verdict, ' '.join(str(reason).split())

    def problem(self, verdict, err):
        traceback.print_exception(*err)
        self.set(verdict, f'{err[0].__name__}: {err[1]}')

    def addSkip(self, test, reason):
        self.set('skip', reason)

    def addError(self, test, err):
        self.problem('error', err)

    def addFailure(self, test, err):
        self.problem('fail', err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.problem('fail' if issubclass(err[0], test.failureException) else 'error', err)

    def addUnexpectedSuccess(self, test):
        self.set('fail', 'unexpected success')


def child(test, out, log):
    """Runs a test and writes the verdict to out. Does not return."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    random.seed(test.id())
    result = Verdict()
    try:
        test.run(result)
    except BaseException:
        result.problem('error', sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(out, f'{result.verdict}\t{result.reason}'.encode())
    os._exit(0)


def players(printed):
    """Returns what the two processes of a test have said of their failures, or nothing."""
    said = re.findall(r'Player (active|passive) got: ((?:(?!Player (?:active|passive) got: ).)*)', printed)
    return ''.join(f' ({player}: {" ".join(words.split())})' for player, words in sorted(said) if words.strip())


class Job:
    """A test that runs, in a process of its own."""

    def __init__(self, test, config, address, limit):
        config['address'] = address
        self.name, self.address, self.limit = test.id().removeprefix('tests.'), address, limit
        self.start = time.monotonic()
        self.log = tempfile.TemporaryFile()
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            child(test, writer, self.log)
        os.close(writer)
        self.pidfd = os.pidfd_open(self.pid)

    def left(self):
        """Returns the seconds until the limit."""
        return max(0, self.start + self.limit - time.monotonic())

    def end(self, late):
        """Ends the test, if it has not. Returns verdict and reason, and what it has printed."""
        for end in os.kill, os.killpg:  # it may have no group yet; and there is what it has started and left
            try:
                end(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        # Not until the end of the pipe: what the test has started and left may have it open, too.
        os.set_blocking(self.reader, False)
        try:
            said = os.read(self.reader, 1 << 16).decode()
        except BlockingIOError:
            said = ''
        with self.log as log:
            log.seek(0)
            printed = log.read().decode(errors='replace')
        os.close(self.reader)
        os.close(self.pidfd)
        if late:
            return f'timeout\tafter {self.limit:g} s', printed
        if status < 0:
            return f'crash\t{signal.Signals(-status).name}', printed
        if not said:
            return f'error\texit status {status}, without a verdict', printed
        return said + players(printed), printed


def run_all(tests, config, addresses, limit, report):
    """Runs the tests, one at a time on each of the addresses, and reports each."""
    free, jobs, waiting = list(addresses), {}, list(reversed(tests))
    try:
        while waiting or jobs:
            while waiting and free:
                job = Job(waiting.pop(), config, free.pop(), limit)
                jobs[job.pidfd] = job
            ended = select.select(jobs, [], [], min(job.left() for job in jobs.values()))[0]
            for pidfd, job in list(jobs.items()):
                if pidfd in ended or not job.left():
                    del jobs[pidfd]
                    free.append(job.address)
                    report(job, *job.end(late=pidfd not in ended))
    finally:
        for job in jobs.values():
            job.end(late=True)


def run_skipped(tests, config, address):
    """Runs tests that are likely to be skipped in this process. Returns the verdicts on those that are, by name."""
    config['address'], skipped = address, {}
    for test in tests:
        result = Verdict()
        with contextlib.redirect_stdout(sys.stderr):
            copy.copy(test).run(result)  # what it opens goes with the copy
        if result.verdict == 'skip':
            skipped[test] = f'skip\t{result.reason}'
    return skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', default='siw0', help='default %(default)s')
    parser.add_argument('--address', action='append', required=True,
                        help="an address of the device's; with several, as many tests run at the same time")
    parser.add_argument('--limit', type=float, default=60, help='seconds for each test; default %(default)g')
    parser.add_argument('--source', default=SOURCE, help='where the tests are; default %(default)s')
    parser.add_argument('--skipped', help='a file with verdicts: tests that are skipped there are tried in one process')
    parser.add_argument('--times', action='store_true', help='print the seconds in a fourth column')
    parser.add_argument('--verbose', action='store_true', help='print on stderr what the tests print')
    parser.add_argument('parts', nargs='*', help='run tests with one of these in their names; default: all')
    args = parser.parse_args()
    if not os.path.isdir(args.source):
        sys.exit(f'{args.source}: no such folder. It comes with the package python3-pyverbs, unless dpkg is told to '
                 'leave documentation out (path-exclude in /etc/dpkg/dpkg.cfg.d).')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('terminated'))

    def say(name, verdict, seconds):
        line = f'{name}\t{verdict}'
        print(f'{line}\t{seconds:.1f}' if args.times else line.rstrip(), flush=True)

    def report(job, verdict, printed):
        say(job.name, verdict, time.monotonic() - job.start)
        if args.verbose and printed:
            print(f'--- {job.name}\n{printed}', file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.join(scratch, 'tests')
        unpack(args.source, folder)
        config = {}
        tests = [test for test in load(folder, args.device, config)
                 if not args.parts or any(part in test.id() for part in args.parts)]
        known = set()
        if args.skipped:
            with open(args.skipped, encoding='utf-8') as lines:
                known = {line.split('\t')[0] for line in lines if line.split('\t')[1:2] == ['skip']}
        likely = [test for test in tests if test.id().removeprefix('tests.') in known]
        # After the others: the processes of these must not have what is open here.
        run_all([test for test in tests if test not in likely], config, args.address, args.limit, report)
        skipped = run_skipped(likely, config, args.address[0])
        for test, verdict in skipped.items():
            say(test.id().removeprefix('tests.'), verdict, 0)
        run_all([test for test in likely if test not in skipped], config, args.address, args.limit, report)


if __name__ == '__main__':
    main()
