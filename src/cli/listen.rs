//! Binds the places to listen on. Clients are refused until the store is open.

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
    let places = [("listen", Some(&config.listen)), ("admin_listen", config.admin_listen.as_ref())];
    let mut all = Vec::new();
    for (setting, place) in places {
        let Some(place) = place else { continue };
        let bound = match place {
            ListenOn::Address(address) => bind_name(address).await,
            ListenOn::Unix(path) => bind_unix(path, config.socket_mode.0),
        };
        let (socket, address) = bound
            .map_err(|error| format!("cannot listen on {place} (setting `{setting}`): {error}"))?;
        all.push(Bound { setting, address, socket });
    }
    Ok(all)
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
        let what = "the file is no socket; remove it or name another one";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) | Err(_) => Err(in_use()),
    }
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another process serves it; stop that one first")
}
