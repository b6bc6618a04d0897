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
        let mut ca = NEW.to_vec();
        ca.extend(["-x509", "-subj", "/CN=test authority", "-days", "2"]);
        ca.extend(["-keyout", "ca.key", "-out", "ca.pem"]);
        openssl(&ca, made.0.path());
        made.sign("server", "2");
        made
    }

    /// Makes NAME.pem and NAME.key, which are valid for so many days.
    pub(crate) fn sign(&self, name: &str, days: &str) {
        let [key, request, certificate] = ["key", "csr", "pem"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN=test {name}");
        let mut asked = NEW.to_vec();
        asked.extend(["-subj", &subject, "-keyout", &key, "-out", &request]);
        openssl(&asked, self.0.path());
        let names = "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
        std::fs::write(self.0.path().join("names"), names).unwrap();
        let mut sign = vec!["x509", "-req", "-in", &request, "-CA", "ca.pem"];
        sign.extend(["-CAkey", "ca.key", "-CAcreateserial", "-days", days]);
        sign.extend(["-extfile", "names", "-out", &certificate]);
        openssl(&sign, self.0.path());
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

const NEW: [&str; 5] = ["req", "-newkey", "rsa:2048", "-nodes", "-batch"];

fn openssl(arguments: &[&str], directory: &Path) {
    let output = command("openssl").args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}
