//! Bytes on a connection to a whole service, and then the end of the client's sending side. Whatever
//! they are, the answer is HTTP and not a 500, and the next client is served.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::time::Duration;

use lockkeeper::server::Server;
use tokio::net::TcpListener;

use super::{config, directory};

const SETTINGS: &str = r#"
[ttl]
default = "1s"
max = "10s"

[limits]
max_wait = "1s"
"#;

/// The time for the begin of an answer.
const ANSWERED: Duration = Duration::from_millis(20);

/// The address of the service, which lives as long as this process.
static SERVICE: LazyLock<SocketAddr> = LazyLock::new(|| {
    let (said, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let directory = directory();
        let config = config(&directory, SETTINGS);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = Server::open(config, &[address.into()]).unwrap();
            said.send(address).unwrap();
            server.run(vec![listener.into()], std::future::pending()).await.unwrap();
        });
    });
    address.recv().unwrap()
});

/// Sends the bytes, and panics if what comes back is not what the contract allows.
pub fn judge(input: &[u8]) {
    let answer = exchange(input);
    if !answer.is_empty() {
        assert!(answer.starts_with(b"HTTP/1."), "{}", answer.escape_ascii());
        assert_ne!(answer.get(9..12), Some(&b"500"[..]), "a fault of the service");
    }
    // The same bytes must not have harmed whoever comes next.
    if input.len().is_multiple_of(64) {
        let answer = exchange(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", answer.escape_ascii());
    }
}

fn exchange(input: &[u8]) -> Vec<u8> {
    let mut connection = TcpStream::connect(*SERVICE).unwrap();
    let mut answer = Vec::new();
    // A service that has refused reads no more.
    if connection.write_all(input).is_ok() {
        // A client that has ended its sending side is gone, so the answer may come before.
        connection.set_read_timeout(Some(ANSWERED)).unwrap();
        let mut first = [0];
        let length = connection.read(&mut first).unwrap_or_default();
        answer.extend_from_slice(&first[..length]);
        // Nothing, where the service was faster.
        let _ = connection.shutdown(Shutdown::Write);
    }
    connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    match connection.read_to_end(&mut answer) {
        Ok(_) => (),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (),
        Err(error) => panic!("no end of the answer: {error}"),
    }
    answer
}
