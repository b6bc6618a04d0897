//! Binds the listeners. Clients are refused until the store is open.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpSocket, UnixListener, lookup_host};

use crate::config::{Config, ListenOn};
use crate::server::{Address, Listener, Listeners, SocketFile};

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1_024;

/// The sockets of a service that does not listen yet.
pub(super) struct Bound {
    main: BoundSocket,
    admin: Option<BoundSocket>,
}

struct BoundSocket {
    setting: &'static str,
    kind: Kind,
}

enum Kind {
    Network(TcpSocket),
    Unix(Socket, SocketFile, PathBuf),
}

impl Bound {
    /// Binds the addresses and unix sockets of the settings. The error is a sentence.
    pub(super) async fn of(config: &Config) -> Result<Self, String> {
        let main = BoundSocket::of("listen", &config.listen, config).await?;
        let admin = match &config.admin_listen {
            Some(place) => Some(BoundSocket::of("admin_listen", place, config).await?),
            None => None,
        };
        Ok(Self { main, admin })
    }

    /// The place for clients, and that for operators.
    pub(super) fn addresses(&self) -> Result<[Option<Address>; 2], String> {
        let admin = self.admin.as_ref().map(BoundSocket::address).transpose()?;
        Ok([Some(self.main.address()?), admin])
    }

    /// Begins to listen.
    pub(super) fn listen(self) -> Result<Listeners, String> {
        let admin = self.admin.map(BoundSocket::listen).transpose()?;
        Ok(Listeners { main: self.main.listen()?, admin })
    }
}

impl BoundSocket {
    async fn of(setting: &'static str, place: &ListenOn, config: &Config) -> Result<Self, String> {
        let kind = match place {
            ListenOn::Address(address) => bind(address).await.map(Kind::Network),
            ListenOn::Unix(path) => bind_unix(path, config.socket_mode.bits()),
        };
        let kind = kind
            .map_err(|error| format!("cannot listen on {place} (setting `{setting}`): {error}"))?;
        Ok(Self { setting, kind })
    }

    fn address(&self) -> Result<Address, String> {
        match &self.kind {
            Kind::Network(socket) => {
                let address = socket.local_addr().map_err(|error| self.failed(&error))?;
                Ok(Address::Network(address))
            }
            Kind::Unix(_, _, path) => Ok(Address::Unix(path.clone())),
        }
    }

    fn listen(self) -> Result<Listener, String> {
        let setting = self.setting;
        let listening = match self.kind {
            Kind::Network(socket) => socket.listen(BACKLOG.unsigned_abs()).map(Listener::Network),
            Kind::Unix(socket, file, _) => socket.listen(BACKLOG).and_then(|()| {
                socket.set_nonblocking(true)?;
                Ok(Listener::Unix(UnixListener::from_std(socket.into())?, file))
            }),
        };
        listening.map_err(|error| format!("cannot listen (setting `{setting}`): {error}"))
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("cannot listen (setting `{}`): {error}", self.setting)
    }
}

async fn bind(listen: &str) -> io::Result<TcpSocket> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in lookup_host(listen).await? {
        match bind_to(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind_to(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // An address in TIME_WAIT is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Makes a unix socket with these permissions. The file of a process that died is replaced, that
/// of another one stays.
fn bind_unix(path: &Path, mode: u32) -> io::Result<Kind> {
    let lock = take(path)?;
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::new(path.to_owned(), lock);
    // Nobody can connect before the socket listens.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(Kind::Unix(socket, file, path.to_owned()))
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
