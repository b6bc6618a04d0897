//! A loss of power. Every write and sync of a busy service on each of its files is recorded, and files
//! are made of what a disk may be left with at any moment: what was not synced is there, missing, or
//! torn at a sector, and the sector that was being written is garbage. Whatever was answered by then
//! has to be in them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use lockkeeper::lock::time::wall_clock_micros;
use tokio::task::JoinSet;

use crate::embedded_faults::file::{Files, Random, files_in, read, write_files};
use crate::support::process::Process;
use crate::support::{Http, PATIENCE, eventually, in_memory};

/// What a disk writes as a whole.
const SECTOR: usize = 512;

const FILES: [&str; 3] = ["locks.sqlite", "locks.sqlite-wal", "locks.sqlite-note"];

const KEYS: usize = 6;

/// The leases of each key.
const LEASES: usize = 70;

/// The files that are made; `IMAGES` in the environment overrides it.
const IMAGES: u64 = 1_500;

/// The files whose recovery loses power as well; of each, a fiftieth of `IMAGES`.
const RECOVERIES: u64 = 10;

/// What the service does to one of its files, and when.
struct Step {
    at: u64,
    file: String,
    deed: Deed,
}

enum Deed {
    Write(usize, Vec<u8>),
    Length(usize),
    /// So many steps, as far as they are of this file, are on the disk.
    Sync(usize),
}

/// What a client heard of its key: the fencing token of the lease that it has since then.
struct Told {
    sent: u64,
    answered: u64,
    holds: Option<u64>,
}

/// A lease after the other of one key, some of them refreshed.
async fn work(http: Http, key: usize) -> Vec<Told> {
    let mut told = Vec::new();
    for lease in 0..LEASES {
        let http = http.token(&format!("token-of-the-client-{key}-{lease}"));
        let path = format!("/locks/{key}");
        for verb in ["POST", "PUT", "DELETE"] {
            if verb == "PUT" && lease % 3 > 0 {
                continue;
            }
            let sent = wall_clock_micros();
            let answer = match verb {
                "POST" => http.post(&format!("{path}?ttl=10h"), "").await,
                "PUT" => http.put(&format!("{path}/refresh"), "").await,
                _ => http.delete(&path).await,
            };
            let answered = wall_clock_micros();
            assert!([200, 201, 204].contains(&answer.status), "{verb} {answer:?}");
            let holds = (verb != "DELETE").then(|| answer.number("fencing_token"));
            told.push(Told { sent, answered, holds });
        }
    }
    told
}

/// The steps of a trace, the calls that are `<unfinished ...>` among them.
fn steps(trace: &str) -> Vec<Step> {
    let (mut steps, mut files, mut open) = (Vec::new(), HashMap::new(), HashMap::new());
    for line in trace.lines() {
        let (task, rest) = line.split_once(' ').unwrap();
        let (at, call) = rest.trim_start().split_once(' ').unwrap();
        let at = (at.parse::<f64>().unwrap() * 1e6) as u64;
        let (begun, before) = match call.starts_with("<... ") {
            true => open.remove(task).unwrap_or_default(),
            false => (call.to_owned(), steps.len()),
        };
        let (name, args) = begun.split_once('(').unwrap_or_default();
        let fd = args.split([',', ')', ' ']).next().unwrap_or_default().to_owned();
        let file = files.get(&fd).cloned();
        let is_begin = !call.starts_with("<... ");
        match (name, file.clone()) {
            ("pwrite64", Some(file)) if is_begin => {
                let mut parts = args.split('"');
                let data = unhexed(parts.nth(1).unwrap());
                let rest = parts.next().unwrap().split([',', ')', '<']);
                let offset = rest.filter_map(|word| word.trim().parse().ok()).nth(1).unwrap();
                steps.push(Step { at, file, deed: Deed::Write(offset, data) });
            }
            ("ftruncate", Some(file)) if is_begin => {
                let length =
                    args.split([',', ')', ' ']).filter_map(|word| word.parse().ok()).nth(1);
                steps.push(Step { at, file, deed: Deed::Length(length.unwrap()) });
            }
            _ => (),
        }
        if call.ends_with("<unfinished ...>") {
            open.insert(task.to_owned(), (begun, before));
            continue;
        }
        let result = call.rsplit_once(" = ").map(|(_, result)| result.trim()).unwrap_or_default();
        match (name, file) {
            ("openat", _) => {
                let path =
                    String::from_utf8_lossy(&unhexed(args.split('"').nth(1).unwrap())).into_owned();
                let file = path.rsplit('/').next().unwrap();
                let file = file.strip_suffix(".new").unwrap_or(file);
                match FILES.contains(&file) {
                    true => _ = files.insert(result.to_owned(), file.to_owned()),
                    false => _ = files.remove(result),
                }
            }
            ("fdatasync" | "fsync", Some(file)) => {
                assert_eq!(result, "0", "{line}");
                steps.push(Step { at, file, deed: Deed::Sync(before) });
            }
            _ => (),
        }
    }
    steps
}

/// `\x61\x62` as bytes.
fn unhexed(text: &str) -> Vec<u8> {
    let bytes = text.split("\\x").skip(1);
    bytes.map(|byte| u8::from_str_radix(&byte[..2], 16).unwrap()).collect()
}

fn write(image: &mut Vec<u8>, at: usize, data: &[u8]) {
    if image.len() < at + data.len() {
        image.resize(at + data.len(), 0);
    }
    image[at..at + data.len()].copy_from_slice(data);
}

/// What the disk may have before the step of this number, with what it had at first.
fn image(mut image: Files, steps: &[Step], number: usize, random: &mut Random) -> Files {
    let mut synced = BTreeMap::new();
    for step in &steps[..number] {
        if let Deed::Sync(before) = step.deed {
            let known: &mut usize = synced.entry(&step.file).or_default();
            *known = before.max(*known);
        }
    }
    let is_synced = |(place, step): &(usize, &Step)| {
        synced.get(&step.file).is_some_and(|before| place < before)
    };
    // In half of the losses a write was under way.
    let unsynced: Vec<_> = (0..).zip(&steps[..number]).filter(|step| !is_synced(step)).collect();
    let under_way = random.below(2 * unsynced.len() + 1);
    let under_way = unsynced.get(under_way).map(|(place, _)| *place);
    for (place, step) in (0..).zip(&steps[..number]) {
        let fate = if is_synced(&(place, step)) { 0 } else { random.below(3) };
        let file = image.entry(step.file.clone()).or_default();
        match &step.deed {
            // Whatever shares the sector with an end of it is lost.
            Deed::Write(at, data) if under_way == Some(place) => {
                let lost = [*at, at + data.len() - 1][random.below(2)] / SECTOR * SECTOR;
                write(file, lost, &[0xa5; SECTOR]);
            }
            Deed::Write(at, data) if fate == 0 => write(file, *at, data),
            Deed::Write(at, data) if fate == 1 => {
                for (sector, data) in data.chunks(SECTOR).enumerate() {
                    if random.below(2) == 0 {
                        write(file, at + sector * SECTOR, data);
                    }
                }
            }
            Deed::Length(length) if fate == 0 => file.resize(*length, 0),
            _ => (),
        }
    }
    image
}

/// What is wrong with the file that a loss of power before a step leaves.
async fn fault(
    steps: &[Step],
    number: usize,
    told: &BTreeMap<usize, Vec<Told>>,
    random: &mut Random,
) -> Option<String> {
    let left = image(Files::new(), steps, number, random);
    let found = fault_of(&left, steps[number].at, told).await;
    found.map(|why| format!("step {number}: {why}"))
}

/// What is wrong with a file that a loss of power at a moment left.
async fn fault_of(left: &Files, at: u64, told: &BTreeMap<usize, Vec<Told>>) -> Option<String> {
    let held = match read(left).await {
        Ok(held) => held,
        Err(why) => return Some(why),
    };
    let number_of = |key: &usize| {
        let status = held.iter().find(|status| status.key.to_string() == key.to_string())?;
        Some(status.holder.as_ref()?.fencing_token?.number())
    };
    told.iter().find_map(|(key, told)| {
        let answered = told.partition_point(|told| told.answered < at);
        let before = answered.checked_sub(1).and_then(|last| told[last].holds);
        let under_way = told.get(answered).filter(|next| next.sent < at);
        let found = number_of(key);
        let fits = found == before || under_way.is_some_and(|next| next.holds == found);
        (!fits).then(|| format!("key {key}: {found:?} instead of {before:?}"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_was_answered_outlives_a_loss_of_power_at_any_moment() {
    let (directory, traced) = (in_memory(), tempfile::tempdir().unwrap());
    let store = format!("embedded:{}", directory.path().display());
    let trace = traced.path().join("trace");
    let mut told = record(&store, &trace).await;
    let mut steps = steps(&std::fs::read_to_string(&trace).unwrap());
    let syncs = steps.iter().filter(|step| matches!(step.deed, Deed::Sync(_))).count();
    let first = told.values().map(|told| told[0].sent).min().unwrap();
    let begin = steps.iter().position(|step| step.at > first).unwrap();
    assert!(syncs > LEASES && begin > 0, "{syncs} syncs, {begin} steps before");

    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let images = variable("IMAGES").unwrap_or(IMAGES);
    let seed = variable("SEED").unwrap_or_else(|| fastrand::u64(..));
    eprintln!("{} steps, {syncs} of them syncs; {images} files from seed {seed}", steps.len());
    let mut random = Random(seed);
    let any = begin..steps.len();
    for _ in 0..images {
        let number = begin + random.below(any.len());
        assert_eq!(fault(&steps, number, &told, &mut random).await, None, "seed {seed}");
    }

    for _ in 0..RECOVERIES {
        let number = begin + random.below(any.len());
        let left = image(Files::new(), &steps, number, &mut random);
        let again = recovery(&left).await;
        assert!(!again.is_empty(), "it repairs nothing");
        for _ in 0..images / 50 {
            let until = random.below(again.len() + 1);
            let twice = image(left.clone(), &again, until, &mut random);
            let found = fault_of(&twice, steps[number].at, &told).await;
            assert_eq!(found, None, "seed {seed}: step {number}, and {until} of its recovery");
        }
    }

    // A service that answers before its commit is on disk would be found, and one that syncs nothing.
    for is_synced in [true, false] {
        told.values_mut().flatten().for_each(|told| told.answered = told.sent);
        if !is_synced {
            steps.iter_mut().for_each(|step| {
                if let Deed::Sync(before) = &mut step.deed {
                    *before = (*before).min(begin);
                }
            });
        }
        let mut found = None;
        for _ in 0..2_000 {
            let number = begin + random.below(any.len());
            found = found.or(fault(&steps, number, &told, &mut random).await);
            if found.is_some() {
                break;
            }
        }
        eprintln!("answers before a sync, {is_synced}: {found:?}");
        assert!(found.is_some(), "nothing is found (synced: {is_synced})");
    }
}

/// Before anybody is served, the first file is whole under its name, and each directory too. What an
/// earlier start left of it is no file.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_file_and_its_directories_are_on_the_disk_before_anybody_is_served() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().canonicalize().unwrap().join("made/data");
    let trace = root.path().join("trace");
    let trace_path = trace.display().to_string();
    let calls = "trace=mkdir,pwrite64,fdatasync,fsync,rename,listen";
    let strace = ["strace", "-D", "-f", "-q", "-y", "-s", "0", "-e", calls, "-o", &trace_path];
    let service =
        Process::start_under(&strace, &["--store", &format!("embedded:{}", data.display())]);
    killed(service, &trace).await;
    let text = std::fs::read_to_string(&trace).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let last = |call: &str, words: &str| {
        let is_it = |line: &&str| line.contains(call) && line.contains(words);
        lines.iter().rposition(is_it).unwrap_or_else(|| panic!("no {call} of {words}: {text}"))
    };
    let (made, file) = (data.parent().unwrap().display().to_string(), "/locks.sqlite.new>");
    let order = [
        last("mkdir(", "made\""),
        last("sync(", &format!("{}>", root.path().canonicalize().unwrap().display())),
        last("mkdir(", "made/data\""),
        last("sync(", &format!("{made}>")),
        last("pwrite64(", file),
        last("sync(", file),
        last("rename(", ""),
        last("sync(", &format!("{}>", data.display())),
        last("listen(", ""),
    ];
    assert!(order.is_sorted(), "{order:?} of {text}");

    for left in files_in(&data).keys() {
        std::fs::remove_file(data.join(left)).unwrap();
    }
    std::fs::write(data.join("locks.sqlite.new"), "half a file").unwrap();
    let store = format!("embedded:{}", data.display());
    let answer = Process::start(&store, &[]).http().post("/locks/k", "").await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

/// What a service does to a file that a loss of power left, until it serves.
async fn recovery(left: &Files) -> Vec<Step> {
    let (directory, traced) = (in_memory(), tempfile::tempdir().unwrap());
    write_files(left, directory.path());
    let trace = traced.path().join("trace");
    let service = traced_service(&format!("embedded:{}", directory.path().display()), &trace);
    killed(service, &trace).await;
    steps(&std::fs::read_to_string(&trace).unwrap())
}

/// Has a service that is traced serve clients of some keys, and kills it.
async fn record(store: &str, trace: &Path) -> BTreeMap<usize, Vec<Told>> {
    let service = traced_service(store, trace);
    let mut clients = JoinSet::new();
    for key in 0..KEYS {
        let http = service.http();
        clients.spawn(async move { (key, work(http, key).await) });
    }
    let mut told = BTreeMap::new();
    while let Some(done) = clients.join_next().await {
        told.extend([done.unwrap()]);
    }
    killed(service, trace).await;
    told
}

/// A service whose writes and syncs are traced.
fn traced_service(store: &str, trace: &Path) -> Process {
    let calls = "trace=openat,pwrite64,ftruncate,fdatasync,fsync";
    let trace_path = trace.display().to_string();
    let strace = [
        "strace",
        "-D",
        "-f",
        "-q",
        "-ttt",
        "-e",
        calls,
        "-xx",
        "-s",
        "4194304",
        "-o",
        &trace_path,
    ];
    Process::start_under(&strace, &["--store", store])
}

/// Kills it, and waits for the end of its trace.
async fn killed(service: Process, trace: &Path) {
    let pid = format!("{} ", service.pid());
    service.kill();
    eventually(PATIENCE, async || {
        let text = std::fs::read_to_string(trace).unwrap();
        let ended =
            |line: &str| line.starts_with(&pid) && line.ends_with("+++ killed by SIGKILL +++");
        text.lines().any(ended).then_some(())
    })
    .await;
}
