//! The unit, the packages, the crate, the alerts and the workflows refer only to what is there.

use std::collections::BTreeSet;
use std::path::Path;

use lockkeeper::config::{Config, Flags, Sources, StoreUrl};
use toml::{Table, Value};

use crate::source::{File, assert_found, assert_none, files};

const UNIT: &str = "deploy/systemd/lockkeeper.service";
const SETTINGS: &str = "deploy/packages/lockkeeper.toml";
const SYSUSERS: &str = "deploy/systemd/lockkeeper.sysusers";
const ALERTS: &str = "deploy/prometheus/alerts.yml";
const OPERATIONS: &str = "docs/operations.md";
const WORKFLOWS: &str = ".github/workflows";

/// Where `make dist` puts what it builds.
const BUILT: &str = "target/release/dist/";

/// Files beside the connections: those of `limits.connections`.
const FILES_BESIDE: usize = 128;

#[test]
fn the_unit_fits_the_packages_and_the_settings() {
    let (unit, settings) = (File::read(UNIT), Path::new(SETTINGS));
    let config = parsed(settings);
    assert_none(&misfits(&unit, &config, &installed(&manifest(), "deb")));
    assert_none(&other_groups(&unit));
}

#[test]
fn every_file_of_a_package_is_there_and_both_kinds_install_the_same() {
    let manifest = manifest();
    let built = File::read("deploy/dist").text;
    for kind in ["deb", "generate-rpm"] {
        let missing = installed(&manifest, kind).into_iter().filter(|(source, _)| {
            let made = source.strip_prefix(BUILT).map(|name| name.trim_end_matches(".gz"));
            let stem = source.split('*').next().unwrap_or_default();
            let there = made.map_or_else(|| is_there(stem), |name| built.contains(name));
            !there
        });
        let missing: Vec<_> = missing.map(|(source, _)| format!("{kind}: no {source}")).collect();
        assert_none(&missing);
    }
    let names = |kind| -> BTreeSet<String> {
        let names = installed(&manifest, kind).into_iter().map(|(source, _)| source);
        let names = names.map(|source| source.trim_end_matches(".gz").to_owned());
        names.filter(|source| source != UNIT).collect() // cargo-deb finds it by itself.
    };
    assert_eq!(names("deb"), names("generate-rpm"));
}

#[test]
fn every_file_that_the_sources_include_is_in_the_crate() {
    let manifest = manifest();
    let included = manifest["package"]["include"].as_array().unwrap();
    let included: Vec<_> = included.iter().map(|path| path.as_str().unwrap()).collect();
    assert_none(&left_out(&files("src", "rs"), &included));
}

#[test]
fn every_alert_leads_to_its_row_of_the_symptoms() {
    let (alerts, page) = (File::read(ALERTS), File::read(OPERATIONS));
    assert!(alerts.text.matches("- alert: ").count() > 10);
    assert_none(&without_a_row(&alerts, &page));
}

#[test]
fn the_dependencies_of_every_release_are_watched_for_advisories() {
    let weekly = File::read(&format!("{WORKFLOWS}/advisories.yml")).text;
    assert!(weekly.contains("- cron: ") && weekly.contains("run: cargo deny check advisories\n"));
    let watched: serde_json::Value =
        serde_norway::from_str(&File::read(".github/dependabot.yml").text).unwrap();
    let watched = watched["updates"].as_array().unwrap().iter();
    let watched: BTreeSet<_> = watched
        .map(|one| {
            [&one["package-ecosystem"], &one["directory"]].map(|text| text.as_str().unwrap())
        })
        .collect();
    for (ecosystem, directory, lock) in [
        ("cargo", "/", "Cargo.lock"),
        ("npm", "/clients/typescript", "package-lock.json"),
        ("github-actions", "/", WORKFLOWS),
    ] {
        assert!(watched.contains(&[ecosystem, directory]), "{ecosystem} in {watched:?}");
        assert!(Path::new(&directory[1..]).join(lock).exists(), "{directory}{lock}");
    }
}

#[test]
fn every_action_of_a_workflow_is_pinned_and_every_argument_of_the_image_is_set() {
    let workflows = files(WORKFLOWS, "yml");
    assert_none(&workflows.iter().flat_map(unpinned).collect::<Vec<_>>());
    let release = File::read(&format!("{WORKFLOWS}/release.yml")).text;
    let dockerfile = File::read("Dockerfile").text;
    let arguments =
        dockerfile.lines().filter_map(|line| line.strip_prefix("ARG ")?.split_once('='));
    let arguments: Vec<_> = arguments.map(|(name, _)| format!("{name}=${{{{")).collect();
    assert_eq!(arguments.len(), 2, "{arguments:?}");
    assert!(arguments.iter().all(|argument| release.contains(argument)), "{arguments:?}");
}

fn manifest() -> Table {
    File::read("Cargo.toml").text.parse().unwrap()
}

fn parsed(settings: &Path) -> Config {
    let flags = Flags { config: Some(settings.to_owned()), ..Flags::default() };
    Config::of(&Sources::find(&flags, std::iter::empty()).unwrap()).unwrap()
}

fn is_there(path: &str) -> bool {
    let (directory, begin) = path.rsplit_once('/').unwrap_or((".", path));
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.any(|name| name.starts_with(begin))
}

/// The files of a package with the places where they are installed, which begin with `/`.
fn installed(manifest: &Table, kind: &str) -> Vec<(String, String)> {
    let assets = manifest["package"]["metadata"][kind]["assets"].as_array().unwrap();
    let pairs = assets.iter().map(|asset| match asset {
        Value::Array(asset) => (asset[0].as_str().unwrap(), asset[1].as_str().unwrap()),
        asset => (asset["source"].as_str().unwrap(), asset["dest"].as_str().unwrap()),
    });
    let named = pairs.map(|(source, place)| {
        let name = if place.ends_with('/') { source.rsplit('/').next().unwrap() } else { "" };
        (source.to_owned(), format!("/{}{name}", place.trim_start_matches('/')))
    });
    named.collect()
}

/// The values of a setting of the unit.
fn values<'a>(unit: &'a File, name: &str) -> Vec<&'a str> {
    let lines = unit.text.lines().filter_map(|line| line.split_once('='));
    lines.filter(|(its, _)| *its == name).map(|(_, value)| value).collect()
}

fn misfits(unit: &File, config: &Config, installed: &[(String, String)]) -> Vec<String> {
    let there = |path: &str| installed.iter().any(|(_, place)| place == path);
    let one = |name: &str| values(unit, name).first().copied().unwrap_or_default();
    let state = format!("/var/lib/{}", one("StateDirectory"));
    let in_state = matches!(&config.store, StoreUrl::Embedded(path) if path == Path::new(&state));
    let seconds = one("TimeoutStopSec").trim_end_matches('s').parse().unwrap_or(0);
    let open = one("LimitNOFILE").parse().unwrap_or(0);
    let settings = one("Environment").strip_prefix("LOCKKEEPER_CONFIG=").unwrap_or_default();
    let rules = [
        ("no package has its program", there(one("ExecStart").trim_end_matches(" serve"))),
        ("it does not serve", one("ExecStart").ends_with(" serve")),
        ("no package has its settings", there(settings)),
        ("its leases are elsewhere", in_state),
        ("it is killed while it stops", seconds > config.limits.shutdown_time.get().as_secs()),
        ("too few open files", open >= config.limits.connections + FILES_BESIDE),
    ];
    let broken = rules.into_iter().filter(|(_, holds)| !holds);
    broken.map(|(what, _)| format!("{}: {what}", unit.path)).collect()
}

/// The files that name another group than the unit's for the settings.
fn other_groups(unit: &File) -> Vec<String> {
    let groups = values(unit, "SupplementaryGroups");
    let [group] = groups[..] else { return vec![format!("{}: {groups:?}", unit.path)] };
    let all =
        [SYSUSERS, "deploy/packages/debian/postinst", "deploy/packages/rpm/pre", "Cargo.toml"];
    let others = all.into_iter().filter(|path| !File::read(path).text.contains(group));
    others.map(|path| format!("{path}: it does not name the group {group}")).collect()
}

/// What the sources include and the crate does not.
fn left_out(sources: &[File], included: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in sources {
        let directory = Path::new(&file.path).parent().unwrap();
        let paths = ["include_str!(\"", "include_bytes!(\""]
            .into_iter()
            .flat_map(|begin| file.text.split(begin).skip(1))
            .filter_map(|rest| rest.split('"').next());
        for path in paths {
            let mut whole = std::path::PathBuf::new();
            for part in directory.join(path).components() {
                match part {
                    std::path::Component::ParentDir => _ = whole.pop(),
                    part => whole.push(part),
                }
            }
            if !included.iter().any(|one| whole.starts_with(one.trim_start_matches('/'))) {
                faults.push(format!("{}: the crate leaves out {}", file.path, whole.display()));
            }
        }
    }
    faults
}

/// The alerts without a link to a row of the table of symptoms, and the rows that no alert leads to.
fn without_a_row(alerts: &File, page: &File) -> Vec<String> {
    let rows =
        page.text.lines().filter_map(|line| line.strip_prefix("| <a id=\"")?.split_once('"'));
    let mut rows: BTreeSet<_> = rows.map(|(id, _)| id).collect();
    let all = rows.clone();
    let mut faults = Vec::new();
    for alert in alerts.text.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let link = alert.split_once("runbook_url: ").map_or("", |(_, rest)| rest);
        let link = link.lines().next().unwrap_or_default();
        let row = link.split_once(&format!("/{}#", page.path)).map_or("", |(_, row)| row);
        rows.remove(row);
        if !all.contains(row) {
            faults.push(format!("{}: {name} has no row: {link:?}", alerts.path));
        }
    }
    faults.extend(rows.into_iter().map(|row| format!("{}: no alert leads to {row}", page.path)));
    faults
}

/// The actions that are not named by the hash of a commit.
fn unpinned(file: &File) -> Vec<String> {
    let actions = file.text.lines().filter_map(|line| line.split_once("uses: "));
    let actions = actions.map(|(_, action)| action);
    let is_hash = |text: &str| text.len() == 40 && text.chars().all(|one| one.is_ascii_hexdigit());
    let loose = actions.filter(|action| {
        let version = action.split_once('@').map_or("", |(_, rest)| rest);
        !is_hash(version.split(' ').next().unwrap())
    });
    loose.map(|action| format!("{}: {action} is not pinned", file.path)).collect()
}

#[test]
fn a_unit_a_crate_or_a_workflow_that_does_not_fit_is_found() {
    let (good, config) = (File::read(UNIT), parsed(Path::new(SETTINGS)));
    let installed = installed(&manifest(), "deb");
    for (from, to, fault) in [
        ("ExecStart=/usr/bin", "ExecStart=/usr/local/bin", "has its program"),
        ("StateDirectory=lockkeeper", "StateDirectory=locks", "leases are elsewhere"),
        ("TimeoutStopSec=20s", "TimeoutStopSec=10s", "killed while it stops"),
        ("LimitNOFILE=65536", "LimitNOFILE=1024", "too few open files"),
    ] {
        let planted = good.text.replace(from, to);
        assert_ne!(planted, good.text, "{from}");
        assert_found(&misfits(&File::planted(UNIT, &planted), &config, &installed), fault);
    }
    let planted = good.text.replace("lockkeeper-settings", "settings-of-locks");
    assert_eq!(other_groups(&File::planted(UNIT, &planted)).len(), 4);
    let source = File::planted("src/a/mod.rs", "include_str!(\"../../config/a.toml\")");
    assert_none(&left_out(std::slice::from_ref(&source), &["/src", "/config"]));
    assert_found(&left_out(&[source], &["/src"]), "leaves out config/a.toml");
    let (alerts, page) = (File::read(ALERTS), File::read(OPERATIONS));
    let planted = |from, to| File::planted(ALERTS, &alerts.text.replacen(from, to, 1));
    assert_found(&without_a_row(&planted("#fault", "#faults"), &page)[..1], "Fault has no row");
    assert_found(
        &without_a_row(&planted("#fault", "#slow-answers"), &page),
        "no alert leads to fault",
    );
    let loose = File::planted("a.yml", "      - uses: actions/checkout@v7\n");
    assert_found(&unpinned(&loose), "actions/checkout@v7 is not pinned");
}
