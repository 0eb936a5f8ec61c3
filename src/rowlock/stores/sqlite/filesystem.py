"""Finds out whether a path is on a network file system. SQLite's locks and shared memory don't reach from one machine
to another: two machines on one file destroy it.

Pure functions over the text of the mount table. An unknown file system is allowed.
"""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

_NETWORK = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "openafs", "ncpfs", "coda"),
        *("ceph", "cephfs", "glusterfs", "lustre", "gpfs", "beegfs", "orangefs", "pvfs2", "ocfs2", "gfs", "gfs2"),
        *("sshfs", "davfs", "davfs2", "webdav", "afpfs", "s3fs", "gcsfuse", "rclone", "goofys", "moosefs", "juicefs"),
    }
)
_ESCAPE = re.compile(r"\\([0-7]{3})")  # /proc/self/mounts writes a space as \040
_MACOS_LINE = re.compile(r"(?P<device>.*?) on (?P<point>/.*) \((?P<kind>[^,)]+)(?P<options>.*)\)\s*\Z")


class Mount(NamedTuple):
    point: str
    kind: str
    options: str


def linux_mounts(table: str) -> list[Mount]:
    """Return the mounts in the text of /proc/self/mounts, in their order."""
    lines = [line.split(" ") for line in table.splitlines()]
    return [Mount(_unescape(line[1]), line[2], line[3]) for line in lines if len(line) >= 4]


def macos_mounts(output: str) -> list[Mount]:
    """Return the mounts in the output of /sbin/mount."""
    found = (_MACOS_LINE.match(line) for line in output.splitlines())
    return [Mount(line["point"], line["kind"], line["options"]) for line in found if line]


def network_filesystem(path: str, mounts: list[Mount]) -> str | None:
    """Return the kind of network file system that holds `path` (absolute, links resolved), or None."""
    holder: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # Of two mounts on one point, the later one covers the earlier.
        if inside and (holder is None or len(mount.point) >= len(holder.point)):
            holder = mount
    return holder.kind if holder is not None and _is_network(holder) else None


def _is_network(mount: Mount) -> bool:
    kind = mount.kind.lower()
    if kind == "9p":
        # Mostly not a network at all: gVisor's and WSL's own disks (trans=fd), a share of a VM's host (trans=virtio).
        transport = re.search(r"\btrans=(\w+)", mount.options)
        return transport is None or transport[1] in ("tcp", "rdma")
    return kind.removeprefix("fuse.") in _NETWORK


def _unescape(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def current_mounts() -> list[Mount]:
    """Return the mounts of this machine; empty on systems where we don't know how to ask."""
    try:
        system = platform.system()  # not sys.platform, which type checkers take for a constant
        if system == "Linux":
            return linux_mounts(Path("/proc/self/mounts").read_text("utf-8", "surrogateescape"))
        if system == "Darwin":
            listing = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True)
            return macos_mounts(listing.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return []
