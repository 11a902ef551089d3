//! The system call `bpf`, for reading alone.
//!
//! Source: `union bpf_attr`, `struct bpf_prog_info` and `struct bpf_map_info` in `linux/bpf.h`; numbers beside a field are its
//! offset in bytes.

use std::marker::PhantomData;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;

/// Commands.
mod command {
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const MAP_GET_NEXT_KEY: i32 = 4;
    pub(super) const PROG_GET_NEXT_ID: i32 = 11;
    pub(super) const MAP_GET_NEXT_ID: i32 = 12;
    pub(super) const PROG_GET_FD_BY_ID: i32 = 13;
    pub(super) const MAP_GET_FD_BY_ID: i32 = 14;
    pub(super) const OBJ_GET_INFO_BY_FD: i32 = 15;
    pub(super) const PROG_QUERY: i32 = 16;
}

/// `BPF_F_RDONLY`.
const READ_ONLY: u32 = 1 << 3;

/// The most programs at one hook (`BPF_CGROUP_MAX_PROGS`, `BPF_MPROG_MAX`).
const MOST_PROGRAMS: u32 = 64;

/// The most maps of a program (`MAX_USED_MAPS`).
const MOST_MAPS: u32 = 64;

/// Size of the information about an object; the kernel writes the fields that it knows.
const INFO: u32 = 128;

/// Size of the arguments; the kernel accepts more than it knows if they are 0.
const SIZE: usize = 144;

/// Arguments of a call, with the memory that the kernel reads and writes.
struct Arguments<'b> {
    words: [u64; SIZE / 8],
    buffers: PhantomData<&'b mut [u8]>,
}

impl<'b> Arguments<'b> {
    const fn new() -> Self {
        Self {
            words: [0; SIZE / 8],
            buffers: PhantomData,
        }
    }

    /// Sets the field of four bytes at `offset`, a multiple of 4.
    fn number(mut self, offset: usize, value: u32) -> Self {
        let shift = if cfg!(target_endian = "big") == offset.is_multiple_of(8) {
            32
        } else {
            0
        };
        let word = &mut self.words[offset / 8];
        *word = *word & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift;
        self
    }

    fn get(&self, offset: usize) -> u32 {
        let bytes = self.words[offset / 8].to_ne_bytes();
        let at = offset % 8;
        bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
    }

    /// Sets the field of eight bytes at `offset`, a multiple of 8, to the address of `buffer`, which must be as large as the
    /// command writes or reads.
    fn buffer(mut self, offset: usize, buffer: &'b mut [u8]) -> Self {
        self.words[offset / 8] = address(buffer);
        self
    }

    fn file(self, offset: usize, file: BorrowedFd<'b>) -> Self {
        let number = u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX);
        self.number(offset, number)
    }

    #[expect(unsafe_code, reason = "libc has no function for this system call")]
    fn call(&mut self, command: i32) -> Result<libc::c_long, Errno> {
        // SAFETY: the kernel reads and writes `SIZE` bytes of the arguments, and the buffers in them, which are borrowed as long
        // as the arguments exist and have the sizes of the command.
        let status = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                self.words.as_mut_ptr(),
                libc::c_uint::try_from(SIZE).unwrap_or_default(),
            )
        };
        Errno::result(status)
    }

    #[expect(
        unsafe_code,
        reason = "the system call returns a file descriptor as a number"
    )]
    fn open(&mut self, command: i32) -> Result<OwnedFd, Errno> {
        let number = self.call(command)?;
        let number = RawFd::try_from(number).map_err(|_| Errno::EBADF)?;
        // SAFETY: the kernel has just opened it for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

/// Returns the address of memory that the kernel writes.
fn address(buffer: &mut [u8]) -> u64 {
    buffer.as_mut_ptr().expose_provenance() as u64
}

/// A kind of object with IDs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Program,
    Map,
}

/// Returns the IDs of all objects of `kind`. Needs `CAP_SYS_ADMIN`.
pub(super) fn ids(kind: Kind) -> Result<Vec<u32>, Errno> {
    let command = match kind {
        Kind::Program => command::PROG_GET_NEXT_ID,
        Kind::Map => command::MAP_GET_NEXT_ID,
    };
    let mut all = Vec::new();
    let mut last = 0;
    loop {
        let mut arguments = Arguments::new().number(0, last);
        match arguments.call(command) {
            Ok(_) => last = arguments.get(4),
            Err(Errno::ENOENT) => return Ok(all),
            Err(errno) => return Err(errno),
        }
        all.push(last);
    }
}

/// Opens the object of `kind` with this ID for reading. Needs `CAP_SYS_ADMIN`.
pub(super) fn open(kind: Kind, id: u32) -> Result<OwnedFd, Errno> {
    match kind {
        Kind::Program => Arguments::new()
            .number(0, id)
            .open(command::PROG_GET_FD_BY_ID),
        Kind::Map => Arguments::new()
            .number(0, id)
            .number(8, READ_ONLY)
            .open(command::MAP_GET_FD_BY_ID),
    }
}

/// The kernel's answer about a program.
#[derive(Debug)]
pub(super) struct ProgramInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) tag: [u8; 8],
    /// Nanoseconds from boot to when it was loaded.
    pub(super) loaded: u64,
    pub(super) uid: u32,
    pub(super) maps: Vec<u32>,
    pub(super) name: String,
}

/// Returns the kernel's information about a program.
pub(super) fn program(file: &OwnedFd) -> Result<ProgramInfo, Errno> {
    let mut ids = [0; MOST_MAPS as usize * 4];
    let mut info = [0; INFO as usize];
    info[52..56].copy_from_slice(&MOST_MAPS.to_ne_bytes());
    info[56..64].copy_from_slice(&address(&mut ids).to_ne_bytes());
    info_of(file, &mut info)?;
    let maps = listed(&ids, u32_at(&info, 52));
    Ok(ProgramInfo {
        kind: u32_at(&info, 0),
        id: u32_at(&info, 4),
        tag: info[8..16].try_into().map_err(|_| Errno::EBADMSG)?,
        loaded: u64::from_ne_bytes(info[40..48].try_into().map_err(|_| Errno::EBADMSG)?),
        uid: u32_at(&info, 48),
        maps,
        name: name(&info[64..80]),
    })
}

/// The kernel's answer about a map.
#[derive(Debug)]
pub(super) struct MapInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) name: String,
}

/// Returns the kernel's information about a map.
pub(super) fn map(file: &OwnedFd) -> Result<MapInfo, Errno> {
    let mut info = [0; INFO as usize];
    info_of(file, &mut info)?;
    Ok(MapInfo {
        kind: u32_at(&info, 0),
        id: u32_at(&info, 4),
        key_size: u32_at(&info, 8),
        value_size: u32_at(&info, 12),
        max_entries: u32_at(&info, 16),
        name: name(&info[24..40]),
    })
}

fn info_of(file: &OwnedFd, info: &mut [u8; INFO as usize]) -> Result<(), Errno> {
    Arguments::new()
        .file(0, file.as_fd())
        .number(4, INFO)
        .buffer(8, info)
        .call(command::OBJ_GET_INFO_BY_FD)
        .map(drop)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|byte| byte.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}

/// Returns the first `count` numbers of `bytes`.
fn listed(bytes: &[u8], count: u32) -> Vec<u32> {
    let count = usize::try_from(count).unwrap_or(0);
    let all = bytes.chunks_exact(4).take(count);
    all.map(|number| u32_at(number, 0)).collect()
}

fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// Returns the key after `key`, which has the map's size, or the first one.
pub(super) fn next_key(
    file: BorrowedFd<'_>,
    key: Option<&mut [u8]>,
    next: &mut [u8],
) -> Result<(), Errno> {
    let arguments = Arguments::new().file(0, file).buffer(16, next);
    let mut arguments = match key {
        Some(key) => arguments.buffer(8, key),
        None => arguments,
    };
    arguments.call(command::MAP_GET_NEXT_KEY).map(drop)
}

/// Returns the value of `key`; both have the sizes of the map, which must not be one per processor.
pub(super) fn value(file: BorrowedFd<'_>, key: &mut [u8], value: &mut [u8]) -> Result<(), Errno> {
    Arguments::new()
        .file(0, file)
        .buffer(8, key)
        .buffer(16, value)
        .call(command::MAP_LOOKUP_ELEM)
        .map(drop)
}

/// The hooks to which programs are attached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'f> {
    /// A control group.
    Cgroup(BorrowedFd<'f>),
    /// A link, by its index in the network namespace of the thread.
    Link(u32),
}

/// Returns the IDs of the programs attached to `target` at a hook (`BPF_*`), in the order in which they run. Needs
/// `CAP_NET_ADMIN`.
pub(super) fn attached(target: Target<'_>, hook: u32) -> Result<Vec<u32>, Errno> {
    let mut ids = [0; MOST_PROGRAMS as usize * 4];
    let arguments = match target {
        Target::Cgroup(file) => Arguments::new().file(0, file),
        Target::Link(index) => Arguments::new().number(0, index),
    };
    let mut arguments = arguments
        .number(4, hook)
        .number(24, MOST_PROGRAMS)
        .buffer(16, &mut ids);
    arguments.call(command::PROG_QUERY)?;
    let count = arguments.get(24);
    Ok(listed(&ids, count))
}
