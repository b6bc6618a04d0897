//! The key of a file: its repository, and its path in there.

use std::fs::{canonicalize, read_to_string};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::cli::hook::harness::Call;
use crate::lock::key::LockKey;

const REPO: &str = "{repo}";
const PATH: &str = "{path}";

/// The key by `form` of what a call edits; `None` if that names a file and the call has none.
pub(super) fn key(form: &str, call: &Call) -> Result<Option<LockKey>, String> {
    let of_file = form.contains(REPO) || form.contains(PATH);
    let (repo, path) = match &call.file {
        Some(file) => place(&real(&call.directory.join(file))),
        None if of_file => return Ok(None),
        None => Default::default(),
    };
    let filled = |path: &str| form.replace(REPO, &repo).replace(PATH, path);
    if let Ok(key) = LockKey::parse(&filled(&path)) {
        return Ok(Some(key));
    }
    // A path that no key can have: it is too long, or its name is `refresh`.
    let digest: String = Sha256::digest(&path).iter().map(|byte| format!("{byte:02x}")).collect();
    let key = LockKey::parse(&filled(&digest));
    key.map(Some).map_err(|error| format!("`{form}` makes no key of a file: {error}"))
}

/// The file without links, also one that does not exist yet.
fn real(file: &Path) -> PathBuf {
    if let Ok(real) = canonicalize(file) {
        return real;
    }
    match (file.parent(), file.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => file.to_owned(),
    }
}

/// The repository of a file and its path in there. One outside of all repositories is of its host.
fn place(file: &Path) -> (String, String) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for root in file.ancestors().skip(1) {
        let Some(common) = common_directory(&root.join(".git")) else { continue };
        let path = file.strip_prefix(root).unwrap_or(file);
        let origin = read_to_string(common.join("config")).ok().and_then(|text| origin(&text));
        let of_host = || segments(&[Path::new(&host), common.parent().unwrap_or(&common)]);
        return (origin.unwrap_or_else(of_host), segments(&[path]));
    }
    (host, segments(&[file]))
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

/// The host and path of the remote `origin`, which all clones share.
fn origin(config: &str) -> Option<String> {
    let lines = config.lines().map(str::trim);
    let mut lines = lines.skip_while(|line| *line != "[remote \"origin\"]").skip(1);
    let url = lines.by_ref().take_while(|line| !line.starts_with('['));
    let url = url.filter_map(|line| line.split_once('=')).find(|(name, _)| name.trim() == "url");
    let url = url?.1.trim().trim_end_matches('/').trim_end_matches(".git");
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split_once('@').map_or(rest, |(_, rest)| rest);
    let (host, path) = match rest.find([':', '/']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let path = path.trim_start_matches(':');
    let path = match path.split_once('/') {
        Some((port, path)) if port.bytes().all(|byte| byte.is_ascii_digit()) => path,
        _ => path,
    };
    Some(segments(&[Path::new(host), Path::new(path)])).filter(|origin| !origin.is_empty())
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
    use super::origin;

    #[test]
    fn clones_by_any_protocol_have_one_name() {
        let config = |url: &str| {
            format!(
                "[core]\n\tbare = false\n[remote \"origin\"]\n\tfetch = x\n\turl = {url}\n[a]\n"
            )
        };
        for url in [
            "git@forge.example:team/shop.git",
            "https://forge.example/team/shop.git",
            "https://user:secret@forge.example/team/shop/",
            "ssh://git@forge.example:2222/team/shop.git",
            "ssh://git@forge.example/team/shop",
        ] {
            assert_eq!(origin(&config(url)).as_deref(), Some("forge.example/team/shop"), "{url}");
        }
        assert_eq!(origin(&config("/srv/git/shop.git")).as_deref(), Some("srv/git/shop"));
        assert_eq!(origin("[core]\n[remote \"other\"]\nurl = a:b\n"), None);
    }
}
