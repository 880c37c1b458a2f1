"""Random mutants, and the tests that notice them: a survivor shows that an assertion is missing.

Run it as ``make mutants``, or ``python -m tests.mutants broker/net --number 50 --seed 7``. A mutant is one change of a
file in a copy of the checkout: a negated condition, another operator, a larger number, a dropped statement. Up to the
first failure it gets the tests of the same name, others that import the file, those of the package, and last those
of `PRODUCTS`. A failure counts if the same test passes without the mutant. Some survivors change no behaviour, so that
the share is a lower bound.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from shutil import copytree, ignore_patterns
from subprocess import PIPE, STDOUT, TimeoutExpired, check_output, run
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]

GOAL = 0.97
"""Share of the mutants that tests must notice."""

IMPORTERS = 12
"""Test files that import the mutated one and are run before its package: hundreds import those that all others use."""

PRODUCTS = {
    "broker": ["tests", "tests/contract"],
    # All tests on Spark are long.
    "spark/capacity": ["tests/spark", "tests/spark/test_end_to_end.py", "--long"],
}
"""Folders of code, each with that of its tests, the tests that every mutant gets at last, and an option of pytest."""

LONGEST = 900.0
"""Seconds for a group of tests. A mutant that takes longer is an endless loop."""

OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
}
"""Operators, and those that replace them."""

Mutant = tuple[str, ast.expr | ast.stmt, str]
"""A file, a part of it, and the replacement of that part."""


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield a part of a node, or the node itself, with a replacement."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in OTHERS:
            yield node, f"({ast.unparse(ast.Compare(left, [OTHERS[type(operator)]()], [right]))})"  # type: ignore[list-item]
        case ast.BoolOp(op=operator, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(OTHERS[type(operator)](), values))})"  # type: ignore[arg-type]
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OTHERS:
            yield node, f"({ast.unparse(ast.BinOp(left, OTHERS[type(operator)](), right))})"  # type: ignore[arg-type]
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, str(value + 1)
        case ast.Expr(value=ast.Call(func=function)) if ".log." not in ast.unparse(function):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield node, "pass"
        case ast.Return(value=ast.expr() as returned) if not isinstance(returned, ast.Constant):
            yield node, "return None"
        case ast.Continue() | ast.Break():
            yield node, "break" if isinstance(node, ast.Continue) else "continue"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if "TYPE_CHECKING" not in ast.unparse(
            test
        ):
            yield test, f"(not ({ast.unparse(test)}))"


def behaviour(node: ast.AST, at_top: bool = True) -> Iterator[ast.AST]:
    """Yield the nodes below one, but for annotations, texts, assertions, and constants, a matter of tuning."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            skipped = isinstance(child, ast.JoinedStr | ast.Assert) or name in (
                "annotation",
                "returns",
                "decorator_list",
            )
            if (
                isinstance(child, ast.AST)
                and not skipped
                and not (at_top and isinstance(child, ast.Assign | ast.AnnAssign))
            ):
                yield child
                yield from behaviour(child, isinstance(child, ast.ClassDef))


def mutants(file: str) -> list[Mutant]:
    """Return all mutants of a file."""
    found = [each for node in behaviour(ast.parse((ROOT / file).read_bytes())) for each in changes(node)]
    return [(file, part, new) for part, new in found if isinstance(part, ast.expr | ast.stmt)]


def changed_lines(file: str, since: str) -> set[int]:
    """Return the numbers of the lines of a file that differ from a revision."""
    hunks = check_output(["git", "diff", "-U0", since, "--", file], cwd=ROOT, text=True)
    found = re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", hunks, re.MULTILINE)
    return {line for begin, count in found for line in range(int(begin), int(begin) + int(count or 1))}


def mutated(source: bytes, part: ast.expr | ast.stmt, new: str) -> bytes:
    """Return a source with a part replaced."""
    lines = source.splitlines(keepends=True)
    places = (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)
    begin, end = (sum(map(len, lines[: line - 1])) + column for line, column in places)
    return source[:begin] + new.encode() + source[end:]


def product_of(file: str) -> str:
    """Return the folder of `PRODUCTS` that has a file, or nothing."""
    return next((each for each in PRODUCTS if Path(each) in Path(file).parents), "")


@cache
def groups(file: str) -> Sequence[Sequence[str]]:
    """Return the tests of a file: those of its name, some that import it, those of its package, the suite of all."""
    product = product_of(file)
    folder, suite = (ROOT / each for each in PRODUCTS[product][:2])
    module = Path(file).with_suffix("")
    package = next(each for each in (folder / module.relative_to(product)).parents if each.is_dir())
    parent, name = (re.escape(each) for each in (".".join(module.parent.parts), module.name))
    imports = re.compile(rf"from {parent}(\.{name} import| import [^\n]*\b{name}\b)")
    tests = [each for each in sorted((ROOT / "tests").rglob("test_*.py")) if imports.search(each.read_text())]
    tests.sort(key=lambda each: package not in each.parents)
    same = [each for each in tests if module.name in each.name]
    others = [each for each in tests if each not in same][:IMPORTERS]
    wider = [package] if package != folder else []
    return [[str(each.relative_to(ROOT)) for each in group] for group in (same, others, wider, [suite])]


def first_failure(tree: Path, tests: Sequence[str], options: Sequence[str]) -> str:
    """Run tests in a tree, and return the first that fails, or nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-rfE", "-p", "no:cacheprovider", f"--basetemp={tree}/tmp"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "HYPOTHESIS_PROFILE": "mutants"}
    try:
        done = run([*command, *options, *tests], cwd=tree, env=environment, stdout=PIPE, stderr=STDOUT, timeout=LONGEST)
    except TimeoutExpired:
        return tests[0]
    named = re.search(rb"^(?:FAILED|ERROR) (\S+?\.py(?:::\S+)?)", done.stdout, re.MULTILINE)
    return "" if done.returncode in (0, 5) else named[1].decode() if named else tests[0]


def noticed(tree: Path, mutant: Mutant, ages: Iterator[float]) -> str:
    """Return the test that fails with a mutant only; nothing if it survives."""
    file, part, new = mutant
    source = (ROOT / file).read_bytes()
    options = PRODUCTS[product_of(file)][2:]
    for group in filter(None, groups(file)):
        for content in (mutated(source, part, new), source):
            (tree / file).write_bytes(content)
            age = next(ages)  # the interpreter compares seconds and sizes with those that it compiled
            os.utime(tree / file, (age, age))
            if content is not source:
                failed = first_failure(tree, group, options)
        if failed and not first_failure(tree, [failed], options):
            return failed
    return ""


def git(*arguments: str) -> list[str]:
    """Return the names of files that a command of git lists."""
    return check_output(["git", *arguments], cwd=ROOT, text=True).split()


def main() -> int:
    """Try mutants, write Markdown, and return 1 if too many survive."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "paths", nargs="*", help="files or directories [files of broker and planner changed since SINCE]"
    )
    parser.add_argument("--since", default="HEAD~20", help="revision [%(default)s]")
    parser.add_argument("--lines", action="store_true", help="mutate only the lines changed since SINCE")
    parser.add_argument("--number", type=int, default=100, help="mutants [%(default)s]")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--results", type=Path, default=ROOT / "dist/mutants.md", help="[%(default)s]")
    options = parser.parse_args()
    wanted = options.paths or git("diff", "--name-only", "--diff-filter=d", options.since)
    files = git("ls-files", "--", *wanted) if wanted else []
    files = [file for file in files if product_of(file) and file.endswith(".py")]
    every = [mutant for file in files for mutant in mutants(file)]
    if options.lines:
        changed = {file: changed_lines(file, options.since) for file in files}
        every = [mutant for mutant in every if mutant[1].lineno in changed[mutant[0]]]
    chosen = Random(options.seed).sample(every, min(options.number, len(every)))
    lines = [f"{len(chosen)} of {len(every)} mutants of {len(files)} files, seed {options.seed}\n"]
    survivors = 0
    with TemporaryDirectory() as directory:
        tree = copytree(ROOT, Path(directory) / "tree", ignore=ignore_patterns(".*", "dist", "build", "__pycache__"))
        ages = iter(time.time() + 2 * number for number in range(10 * len(chosen)))
        for mutant in chosen:
            test = noticed(tree, mutant, ages)
            survivors += not test
            lines.append(f"- `{mutant[0]}:{mutant[1].lineno}: {mutant[2]}`: {test or '**survives**'}")
            print(lines[-1], flush=True)
    share = 1 - survivors / max(1, len(chosen))
    lines.append(f"\n{survivors} survive: {share:.1%} are noticed, of {GOAL:.0%}")
    options.results.parent.mkdir(exist_ok=True)
    options.results.write_text("\n".join(lines) + "\n")
    print(lines[-1])
    return share < GOAL


if __name__ == "__main__":
    raise SystemExit(main())
