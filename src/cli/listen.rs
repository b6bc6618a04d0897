//! Binds the places to listen on, or checks them. Clients are refused until the store is open.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tokio::net::{TcpSocket, UnixSocket, lookup_host};

use crate::config::{Config, ListenOn};
use crate::server::{Address, Listener, SocketFile};

/// The most connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// A place on which the service does not listen yet.
pub(super) struct Bound {
    setting: &'static str,
    pub(super) address: Address,
    socket: Socket,
}

enum Socket {
    Network(TcpSocket),
    Unix(UnixSocket, SocketFile),
}

/// Binds the places of the settings: that of clients, and that of operators if they have their own.
/// The error is a sentence.
pub(super) async fn bind(config: &Config) -> Result<Vec<Bound>, String> {
    let mut all = Vec::new();
    for (setting, place) in places(config) {
        let bound = match place {
            ListenOn::Address(address) => bind_name(address).await,
            ListenOn::Unix(path) => bind_unix(path, config.socket_mode.0),
        };
        let (socket, address) = bound.map_err(|error| refusal(setting, place, &error))?;
        all.push(Bound { setting, address, socket });
    }
    Ok(all)
}

/// Checks the places of the settings and returns their addresses. Listens on none: a place may be in
/// use, by the service whose settings are checked.
pub(super) async fn check(config: &Config) -> Result<Vec<Address>, String> {
    let mut all = Vec::new();
    for (setting, place) in places(config) {
        let checked = match place {
            ListenOn::Address(address) => check_name(address).await,
            ListenOn::Unix(path) => check_unix(path),
        };
        all.push(checked.map_err(|error| refusal(setting, place, &error))?);
    }
    Ok(all)
}

/// The settings that name a place, and their places.
fn places(config: &Config) -> impl Iterator<Item = (&'static str, &ListenOn)> {
    let admin = config.admin_listen.as_ref().map(|place| ("admin_listen", place));
    [("listen", &config.listen)].into_iter().chain(admin)
}

fn refusal(setting: &str, place: &ListenOn, error: &io::Error) -> String {
    format!("cannot listen on {place} (setting `{setting}`): {error}")
}

impl Bound {
    pub(super) fn listen(self) -> Result<Listener, String> {
        let listener = match self.socket {
            Socket::Network(socket) => socket.listen(BACKLOG).map(Listener::Network),
            Socket::Unix(socket, file) => {
                socket.listen(BACKLOG).map(|listener| Listener::Unix(listener, file))
            }
        };
        listener.map_err(|error| format!("cannot listen (setting `{}`): {error}", self.setting))
    }
}

async fn bind_name(name: &str) -> io::Result<(Socket, Address)> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in lookup_host(name).await? {
        match bind_address(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn check_name(name: &str) -> io::Result<Address> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in lookup_host(name).await? {
        match bind_address(address) {
            Ok(_) => return Ok(Address::Network(address)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Ok(Address::Network(address));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind_address(address: SocketAddr) -> io::Result<(Socket, Address)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // An address in TIME_WAIT is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let address = Address::Network(socket.local_addr()?);
    Ok((Socket::Network(socket), address))
}

/// Makes a unix socket with these permissions. The file of a process that died is replaced, that
/// of another one stays.
fn bind_unix(path: &Path, mode: u32) -> io::Result<(Socket, Address)> {
    let lock = take(path)?;
    remove_stale(path)?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile { path: path.to_owned(), _lock: lock };
    // Nobody can connect before the socket listens.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok((Socket::Unix(socket, file), Address::Unix(path.to_owned())))
}

fn check_unix(path: &Path) -> io::Result<Address> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::read_dir(directory.unwrap_or_else(|| Path::new(".")))?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(no_socket()),
        _ => Ok(Address::Unix(path.to_owned())),
    }
}

/// Locks the path of a unix socket, by a file beside it that stays: one that has bound its socket
/// but does not listen yet could not be told from one that died.
fn take(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).truncate(false).mode(0o600).open(&name)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(in_use()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(no_socket());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) | Err(_) => Err(in_use()),
    }
}

fn no_socket() -> io::Error {
    let what = "the file is no socket; remove it or name another one";
    io::Error::new(io::ErrorKind::AlreadyExists, what)
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another process serves it; stop that one first")
}
