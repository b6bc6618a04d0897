//! The key of a file: its repository, and its path in there.

use std::env::vars_os;
use std::fmt::Display;
use std::fs::{canonicalize, read_link, read_to_string};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use crate::cli::hook::harness::Call;
use crate::lock::key::LockKey;

const REPO: &str = "{repo}";
const PATH: &str = "{path}";

/// The key by `form` of what a call edits; `None` if that names a file and the call has none.
pub(super) fn key(form: &str, call: &Call) -> Result<Option<LockKey>, String> {
    let of_file = form.contains(REPO) || form.contains(PATH);
    let (repo, path) = match &call.file {
        _ if !of_file => Default::default(),
        Some(file) => place(&real(&call.directory.join(file)))?,
        None => return Ok(None),
    };
    let filled = |repo: &str, path: &str| form.replace(REPO, repo).replace(PATH, path);
    // No key can have what is too long, or the name `refresh` at its end.
    let names = [(&repo, &path), (&repo, &digest(&path)), (&digest(&repo), &digest(&path))];
    let mut keys = names.map(|(repo, path)| LockKey::parse(&filled(repo, path))).into_iter();
    let key = keys.find(Result::is_ok).unwrap_or_else(|| LockKey::parse(&filled(&repo, &path)));
    key.map(Some).map_err(|error| format!("`{form}` makes no key of a file: {error}"))
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The most links from one path to another, as in Linux.
const MOST_LINKS: usize = 40;

/// The file without links and without `..`, also one that does not exist yet.
fn real(file: &Path) -> PathBuf {
    resolved(file, MOST_LINKS)
}

fn resolved(file: &Path, links: usize) -> PathBuf {
    if let Ok(real) = canonicalize(file) {
        return real;
    }
    let mut real = PathBuf::new();
    for part in file.components() {
        match part {
            Component::CurDir => continue,
            Component::ParentDir => {
                real.pop();
                continue;
            }
            part => real.push(part),
        }
        // A link to what does not exist yet.
        if links > 0
            && let Ok(target) = read_link(&real)
        {
            real.pop();
            real = resolved(&real.join(target), links - 1);
        }
    }
    real
}

/// The repository of a file and its path in there. One outside of all repositories is of its host.
fn place(file: &Path) -> Result<(String, String), String> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for root in file.ancestors().skip(1) {
        let Some(common) = common_directory(&root.join(".git")) else { continue };
        let path = file.strip_prefix(root).unwrap_or(file);
        let origin = remote(root)?.and_then(|url| origin(&url));
        // Of a bare repository it is the directory itself.
        let directory = if common.ends_with(".git") { common.parent() } else { None };
        let of_host = || segments(&[Path::new(&host), directory.unwrap_or(&common)]);
        return Ok((origin.unwrap_or_else(of_host), segments(&[path])));
    }
    Ok((host, segments(&[file])))
}

/// The directory that all worktrees of a repository share, by the `.git` of one of them.
fn common_directory(git: &Path) -> Option<PathBuf> {
    if git.is_dir() {
        return Some(git.to_owned());
    }
    let text = read_to_string(git).ok()?;
    let own = git.parent()?.join(text.trim().strip_prefix("gitdir:")?.trim());
    let common = read_to_string(own.join("commondir"));
    Some(real(&common.map_or_else(|_| own.clone(), |common| own.join(common.trim()))))
}

/// The exit code of Git, since 2.30, about a remote that a repository does not have.
const NO_SUCH_REMOTE: i32 = 2;

/// The URL of the remote `origin` of a repository, as its Git reads its settings: those of the
/// repository and its user, also if it belongs to another user, and whatever the variables name.
/// Only a Git that knows of no such remote says that there is none.
fn remote(root: &Path) -> Result<Option<String>, String> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "-C"]).arg(root);
    git.args(["remote", "get-url", "origin"]).stdin(Stdio::null());
    for (name, _) in vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"GIT_")) {
        git.env_remove(name);
    }
    let failed = |why: &dyn Display| {
        format!("git does not tell the remote of the repository in {}: {why}", root.display())
    };
    let ran = git.output().map_err(|error| failed(&error))?;
    match ran.status.code() {
        Some(0) => {
            let url = String::from_utf8(ran.stdout).map_err(|error| failed(&error))?;
            Ok(Some(url.trim().to_owned()))
        }
        Some(NO_SUCH_REMOTE) => Ok(None),
        _ => Err(failed(&String::from_utf8_lossy(&ran.stderr).trim())),
    }
}

/// The host and path of a remote, which all clones share: without protocol, user, port and `.git`.
fn origin(url: &str) -> Option<String> {
    let (authority, path) = match url.split_once("://") {
        Some((_, rest)) => {
            let rest = rest.split(['?', '#']).next().unwrap_or_default();
            rest.split_once('/').unwrap_or((rest, ""))
        }
        // As in user@host:path, where no slash stands before the colon.
        None => match url.split_once("]:").or_else(|| url.split_once(':')) {
            Some((authority, path)) if !authority.contains('/') => (authority, path),
            _ => ("", url),
        },
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host.trim_start_matches('[').split(':').next().unwrap_or_default();
    let path = path.trim_end_matches('/').trim_end_matches(".git");
    let origin = segments(&[Path::new(&host.to_lowercase()), Path::new(path)]);
    Some(origin).filter(|origin| !origin.is_empty())
}

/// The names of paths, one after the other.
fn segments(paths: &[&Path]) -> String {
    let all = paths.iter().flat_map(|path| path.components());
    let names = all.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    names.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use std::fs::{canonicalize, create_dir};
    use std::os::unix::fs::symlink;

    use super::{origin, real};

    #[test]
    fn clones_by_any_protocol_have_one_name() {
        for url in [
            "git@forge.example:team/shop.git",
            "git@[forge.example:22]:team/shop.git",
            "https://Forge.example/team/shop.git?token=secret",
            "https://user:secret@forge.example/team/shop/",
            "ssh://git@forge.example:2222/team/shop.git",
            "ssh://git@forge.example/team/shop",
        ] {
            assert_eq!(origin(url).as_deref(), Some("forge.example/team/shop"), "{url}");
        }
        assert_eq!(origin("/srv/git/a@b#1.git").as_deref(), Some("srv/git/a@b#1"));
        assert_eq!(origin("file:///srv/git/shop.git").as_deref(), Some("srv/git/shop"));
        assert_eq!(origin("/"), None);
    }

    #[test]
    fn a_file_that_does_not_exist_has_one_path() {
        let directory = tempfile::tempdir().unwrap();
        let root = canonicalize(directory.path()).unwrap();
        create_dir(root.join("d")).unwrap();
        symlink("d/new", root.join("dangling")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let new = root.join("d/new");
        for path in ["d/new", "nope/../d/./new", "d/nope/../new", "dangling"] {
            assert_eq!(real(&root.join(path)), new, "{path}");
        }
        assert_eq!(real(&root.join("dangling/x")), new.join("x"));
        assert!(real(&root.join("loop/x")).ends_with("x"));
    }
}
