#!/usr/bin/env python3
"""Makes the text of the ladder (ladder.py) from two packages of Debian 12: the Linux kernel's documentation and its C
sources, file by file in an order that hashes of their names give, so that the held-out end is like the rest.

  kernel_text.py OUT [--bytes 48000000]      fetches linux-doc-6.1 and linux-source-6.1 (177 MB) into ~/.cache/sestina

The digests of packages and text are those of one version: the same bytes everywhere. Another version is refused unless
--any-version says that it will do; its text is another one.
"""

import argparse
import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile

VERSION = "6.1.192-2"
PACKAGES = {"linux-doc-6.1": "d1d1b5a602f0d439ecc39e713e044bf2df30d839fb4bf8a7b859ba3273c47993",
            "linux-source-6.1": "ae95fe63d4c553f8d0e6c86cb1ab566f3894a43743eb19ab585cd97d82f26514"}
BYTES = 48_000_000  # 20 for each parameter of the largest model, and what is held out
TEXT = "7e1cb6f22d7de03ad89cc6146fb140cf5e2f559043ecb4c0742cd80f8e528388"  # of so many bytes of these packages
PARTS = ("block", "crypto", "fs", "include", "init", "ipc", "kernel", "lib", "mm", "net", "security")


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(name, cache, any_version):
    cache.mkdir(parents=True, exist_ok=True)
    found = sorted(cache.glob(f"{name}_*.deb"))
    if not found:
        command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", f"{name}={VERSION}" if not any_version else name]
        if subprocess.run(command, cwd=cache).returncode:
            sys.exit(f"kernel_text.py: cannot fetch {name}: run apt-get update, or put the package into {cache}")
        found = sorted(cache.glob(f"{name}_*.deb"))
    got = digest_of(found[-1])
    if got != PACKAGES[name] and not any_version:
        sys.exit(f"kernel_text.py: {found[-1]} has the digest {got}, allowed {PACKAGES[name]} ({VERSION}); --any-version takes it")
    return found[-1]


def members(package):
    """Names and bytes of the files of a package."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as unpacked, \
            tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive:
        for member in archive:
            if member.isfile():
                yield member.name, archive.extractfile(member)


def documents(package):
    """The sources of the pages, in English."""
    for name, file in members(package):
        if "/_sources/" in name and name.endswith(".txt") and "/translations/" not in name:
            yield name.split("/_sources/")[1], file.read()


def sources(package):
    for name, file in members(package):
        if not name.endswith(".tar.xz"):
            continue
        with tarfile.open(fileobj=io.BufferedReader(file), mode="r|xz") as archive:
            for member in archive:
                parts = member.name.split("/")
                if member.isfile() and len(parts) > 2 and parts[1] in PARTS and member.name.endswith((".c", ".h")):
                    yield "/".join(parts[1:]), archive.extractfile(member).read()


def chosen(files, limit):
    """The files in the order of the hashes of their names, cut after so many bytes."""
    text = b"".join(data.rstrip() + b"\n\n" for _, data in
                    sorted(files, key=lambda file: hashlib.sha256(file[0].encode()).digest()))
    return text[:limit]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/sestina")
    parser.add_argument("--any-version", action="store_true")
    args = parser.parse_args()
    packages = {name: fetch(name, args.cache, args.any_version) for name in PACKAGES}
    text = chosen([*documents(packages["linux-doc-6.1"]), *sources(packages["linux-source-6.1"])], args.bytes)
    if len(text) < args.bytes:
        sys.exit(f"kernel_text.py: the packages have {len(text)} bytes of text, asked for {args.bytes}")
    got = hashlib.sha256(text).hexdigest()
    if args.bytes == BYTES and got != TEXT and not args.any_version:
        sys.exit(f"kernel_text.py: the text has the digest {got}, expected {TEXT}")
    args.out.write_bytes(text)
    print(f"{args.out}: {len(text)} bytes, sha256 {got}")


if __name__ == "__main__":
    main()
