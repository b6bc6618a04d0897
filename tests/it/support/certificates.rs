//! Certificates of the test's own.

use std::path::Path;

use tempfile::TempDir;

use crate::support::process::command;

/// ca.pem of an authority of the test's own, and server.pem and server.key of a server on this
/// machine that it signed.
pub(crate) struct Certificates(TempDir);

impl Certificates {
    pub(crate) fn make() -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        let new = ["req", "-newkey", "rsa:2048", "-nodes", "-batch"];
        let mut ca = new.to_vec();
        ca.extend(["-x509", "-subj", "/CN=test authority", "-days", "2"]);
        ca.extend(["-keyout", "ca.key", "-out", "ca.pem"]);
        openssl(&ca, made.0.path());
        let mut request = new.to_vec();
        request.extend(["-subj", "/CN=test server", "-keyout", "server.key", "-out", "server.csr"]);
        openssl(&request, made.0.path());
        let names = "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
        std::fs::write(made.0.path().join("names"), names).unwrap();
        let mut sign = vec!["x509", "-req", "-in", "server.csr", "-CA", "ca.pem"];
        sign.extend(["-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]);
        sign.extend(["-extfile", "names", "-out", "server.pem"]);
        openssl(&sign, made.0.path());
        made
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

fn openssl(arguments: &[&str], directory: &Path) {
    let output = command("openssl").args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}
