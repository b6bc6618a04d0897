//! Binds the listeners. Clients are refused until the store is open.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, UnixListener, lookup_host};

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
    socket: Socket,
    address: Address,
    /// That of a unix socket.
    file: Option<SocketFile>,
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
    pub(super) fn addresses(&self) -> [Option<Address>; 2] {
        let admin = self.admin.as_ref().map(|admin| admin.address.clone());
        [Some(self.main.address.clone()), admin]
    }

    /// Begins to listen.
    pub(super) fn listen(self) -> Result<Listeners, String> {
        let admin = self.admin.map(BoundSocket::listen).transpose()?;
        Ok(Listeners { main: self.main.listen()?, admin })
    }
}

impl BoundSocket {
    async fn of(setting: &'static str, place: &ListenOn, config: &Config) -> Result<Self, String> {
        let bound = match place {
            ListenOn::Address(address) => {
                bind(address).await.map(|(socket, at)| (socket, at, None))
            }
            ListenOn::Unix(path) => bind_unix(path, config.socket_mode.bits())
                .map(|(socket, file)| (socket, Address::Unix(path.clone()), Some(file))),
        };
        let (socket, address, file) = bound
            .map_err(|error| format!("cannot listen on {place} (setting `{setting}`): {error}"))?;
        Ok(Self { setting, socket, address, file })
    }

    fn listen(self) -> Result<Listener, String> {
        let begin = || {
            self.socket.listen(BACKLOG)?;
            self.socket.set_nonblocking(true)?;
            Ok(match self.file {
                None => Listener::Network(TcpListener::from_std(self.socket.into())?),
                Some(file) => Listener::Unix(UnixListener::from_std(self.socket.into())?, file),
            })
        };
        begin().map_err(|error: io::Error| {
            format!("cannot listen (setting `{}`): {error}", self.setting)
        })
    }
}

async fn bind(listen: &str) -> io::Result<(Socket, Address)> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in lookup_host(listen).await? {
        match bind_to(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind_to(address: SocketAddr) -> io::Result<(Socket, Address)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // An address in TIME_WAIT is free.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, Address::Network(address)))
}

/// Makes a unix socket with these permissions. The file of a process that died is replaced, that
/// of another one stays.
fn bind_unix(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    let lock = take(path)?;
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::new(path.to_owned(), lock);
    // Nobody can connect before the socket listens.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok((socket, file))
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
