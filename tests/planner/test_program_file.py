from __future__ import annotations

from pathlib import Path

import pytest

from radixserve.errors import ConfigError
from radixserve.planner.program_file import read_program

PROGRAM = """
from radixlang import function, gen

@function
def program(s, question):
    s += question + gen("answer", max_tokens=4)
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some_program.py"
    path.write_text(text)
    return path


def test_program_and_inputs_by_their_usual_names(tmp_path: Path) -> None:
    found = read_program(write(tmp_path, PROGRAM + 'inputs = [{"question": "a"}, ["b"]]\n'))
    assert found.program.body.__name__ == "program"
    assert found.inputs == [{"question": "a"}, ["b"]]


def test_inputs_may_be_made_by_a_function(tmp_path: Path) -> None:
    text = PROGRAM + 'def inputs(count=2):\n    return [{"question": str(n)} for n in range(count)]\n'
    assert read_program(write(tmp_path, text)).inputs == [{"question": "0"}, {"question": "1"}]


def test_other_names_and_a_file_of_inputs(tmp_path: Path) -> None:
    text = PROGRAM.replace("def program", "def other") + "@function\ndef third(s): pass\n"
    path = write(tmp_path, text)
    (tmp_path / "inputs.json").write_text('[{"question": "a"}]')
    found = read_program(path, "other", tmp_path / "inputs.json")
    assert (found.program.body.__name__, found.inputs) == ("other", [{"question": "a"}])
    with pytest.raises(ConfigError, match=r"program: .* has none called 'program'; it has other, third"):
        read_program(path)


def test_the_only_program_needs_no_name_and_without_parameters_no_inputs(tmp_path: Path) -> None:
    found = read_program(write(tmp_path, "from radixlang import function\n@function\ndef lonely(s, n=3): pass\n"))
    assert (found.program.body.__name__, found.inputs) == ("lonely", [{}])


def test_a_file_may_import_what_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_the_program.py").write_text('QUESTIONS = [{"question": "q"}]\n')
    text = "from beside_the_program import QUESTIONS as inputs\n" + PROGRAM
    assert read_program(write(tmp_path, text)).inputs == [{"question": "q"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "program: .*has none called 'program'; it has no function under @function"),
        ("def program(s): pass", r"program: .*has no program \(a function under @function\) called 'program'"),
        (PROGRAM, "inputs: .*has none called 'inputs', and the program has parameters"),
        (PROGRAM + "inputs = []", "inputs: .*must be a list, and hold the arguments of at least one run"),
        (PROGRAM + "inputs = {'question': 'a'}", "inputs: .*must be a list"),
        (PROGRAM + "inputs = ['a']", r"inputs: .*\[0\] must be a mapping of arguments or a sequence of them"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_program(write(tmp_path, text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file: .* is no file"):
        read_program(tmp_path / "missing.py")
    with pytest.raises(ConfigError, match=r"inputs: .*missing\.json cannot be read"):
        read_program(write(tmp_path, PROGRAM), None, tmp_path / "missing.json")
