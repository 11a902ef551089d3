//! Socket options of `ip_tables` and `ip6_tables`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// Gets `option` of `level`. The kernel reads the request from `value`, and overwrites it with its answer.
#[expect(
    unsafe_code,
    reason = "no safe function passes the kernel a value with getsockopt"
)]
pub(super) fn ask(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<()> {
    let size = value.len();
    let mut length = libc::socklen_t::try_from(size).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the kernel reads and writes at most `length` bytes of `value`, which has so many.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(status)?;
    if usize::try_from(length) != Ok(size) {
        return Err(Errno::EBADMSG.into());
    }
    Ok(())
}
