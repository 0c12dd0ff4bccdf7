"""What of the Dockerfile language is read, and what is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.images.dockerfile import Copy, MakeWorkdir, Run, parse_dockerfile
from agentic.images.errors import DockerfileError

FROM = "FROM agentic/base:local\n"


def test_a_whole_file_is_read_with_what_was_in_force_at_each_line() -> None:
    text = """# a comment
FROM agentic/base:local AS build

ENV A=1 B="two words" C=$A
WORKDIR /app
WORKDIR src
COPY ["with space.txt", "./"]
COPY a/ b*.py lib/
ENV OLD style value
RUN echo one && \\
    # in between
    echo two
USER nobody
RUN ["ls", "-l"]
WORKDIR /app
"""
    read = parse_dockerfile(text)
    env = {"A": "1", "B": "two words", "C": ""}
    assert read.steps == (
        MakeWorkdir(5, "/app"),
        MakeWorkdir(6, "/app/src"),
        Copy(7, ("with space.txt",), "/app/src/"),
        Copy(8, ("a/", "b*.py"), "/app/src/lib/"),
        Run(10, ("/bin/sh", "-c", "echo one &&     echo two"), {**env, "OLD": "style value"}, "/app/src", "root"),
        Run(14, ("ls", "-l"), {**env, "OLD": "style value"}, "/app/src", "nobody"),
        MakeWorkdir(15, "/app"),
    )
    assert (read.base, read.workdir, read.user) == ("agentic/base:local", "/app", "nobody")


def test_variables_of_the_base_image_and_of_earlier_lines_are_expanded() -> None:
    text = (
        FROM + "ENV PATH=/app/bin:$PATH\nENV HERE=/srv\nWORKDIR ${HERE}/x\nCOPY f $HERE/\n"
        "ENV D=\\$HERE E='$A' F=\"it's ${HERE}\""
    )
    read = parse_dockerfile(text, {"PATH": "/bin"})
    assert read.env == {"PATH": "/app/bin:/bin", "HERE": "/srv", "D": "$HERE", "E": "$A", "F": "it's /srv"}
    assert read.steps == (MakeWorkdir(4, "/srv/x"), Copy(5, ("f",), "/srv/"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: there is no FROM"),
        ("COPY a b", "line 1: COPY comes before FROM"),
        (FROM + "\n# x\nADD a b", "line 4: ADD is not supported, only FROM, COPY, RUN, WORKDIR, ENV, USER"),
        (FROM + "ENTRYPOINT sh", "line 2: ENTRYPOINT is not supported"),
        (FROM + "FROM other", "line 2: a second FROM"),
        (FROM + "COPY --from=build a b", "line 2: COPY --from is not supported"),
        (FROM + "COPY --chown=1:1 a b", "line 2: COPY --chown is not supported"),
        (FROM + "RUN --mount=type=cache,target=/x y", "line 2: RUN --mount is not supported"),
        ("FROM --platform=linux/amd64 x", "line 1: FROM --platform is not supported"),
        (FROM + "RUN true \\\n && cat <<EOF\nhello\nEOF", "line 2: here-documents in RUN are not supported"),
        (FROM + "COPY <<'X' /f\nx\nX", "line 2: here-documents in COPY are not supported"),
        (FROM + "COPY only", "line 2: COPY needs a source and a target"),
        (FROM + "COPY ../up /x", "line 2: COPY source ../up leads out of the environment folder"),
        (FROM + "COPY a b /x", "line 2: COPY of several sources needs a target that ends with /"),
        (FROM + "WORKDIR", "line 2: WORKDIR needs an argument"),
        (FROM + "USER a:b", "line 2: USER a:b is not supported"),
        (FROM + "ENV 1A=x", "line 2: ENV '1A' is no variable name"),
        (FROM + 'ENV A="x', "line 2: ENV cannot be read: No closing quotation"),
        (FROM + "WORKDIR ${A:-b}", r"line 2: \$\{A:-b\} is not supported"),
        ("# escape=`\n" + FROM, "line 1: the escape directive is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_and_line(text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=message):
        parse_dockerfile(text)


@given(st.text(alphabet="FROM COPYRUNENV\n\\ abc/$\"'=[]{}#<-", max_size=80))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        steps = parse_dockerfile(FROM + text).steps
    except DockerfileError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert all(step.line > 1 for step in steps)
    assert not refusal or (refusal.startswith("line ") and "\n" not in refusal)
