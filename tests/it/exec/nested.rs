//! `exec` within `exec`.

use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Ran, Stage, dead};
use crate::support::process::BINARY;
use crate::support::{PATIENCE, eventually};

/// Prints the variables of COMMAND.
const TELLS: &str = "echo $LOCK_KEY $LOCK_FENCING_TOKEN $LOCK_TOKEN ${LOCK_SLOT-none}";

/// Runs a script under `exec` with these words before it. In it `@exec` is an inner one, and `@tells`
/// prints the variables.
fn outer(stage: &Stage, words: &[&str], script: &str) -> Ran {
    let script = script.replace("@exec", &format!("{BINARY} exec"));
    let script = script.replace("@tells", &format!("sh -c '{TELLS}'"));
    stage.ran(&[words, &["sh", "-c", &script]].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inner_command_runs_within_the_outer_lease_and_leaves_it() {
    let stage = Stage::new();
    let url = stage.url();
    let script = format!(
        "@tells; @exec key @tells; echo $?; curl -sS {url}/locks/key; echo; @exec -q -n key sh -c 'exit 7'"
    );
    let ran = outer(&stage, &["key"], &script);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    let [own, inner, "0", look] = lines[..] else { panic!("{ran:?}") };
    assert!(own.starts_with("key ") && own.ends_with(" none"), "{ran:?}");
    assert_eq!(own, inner);
    let number = own.split(' ').nth(1).unwrap();
    assert!(look.contains(number), "{ran:?}");
    let within = "'key': COMMAND runs within the lease of the outer exec, fencing token";
    assert_eq!(ran.err, format!("lockkeeper: {within} {number}\n"));
    assert_eq!(stage.look("key").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_may_be_that_of_an_exec_further_out() {
    let stage = Stage::new();
    let inner = format!("{BINARY} exec -q 'a key' sh -c '{TELLS}'");
    std::fs::write(stage.path("inner.sh"), inner).unwrap();
    let script = format!("@tells; @exec b sh {}", stage.path("inner.sh"));
    let ran = outer(&stage, &["a key"], &script);
    assert_eq!((ran.code, &*ran.err), (Some(0), ""), "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    let [own, innermost] = lines[..] else { panic!("{ran:?}") };
    assert!(own.starts_with("a key "), "{ran:?}");
    assert_eq!(own, innermost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_within_a_reader_needs_no_lease_of_its_own() {
    let stage = Stage::new();
    let ran = outer(&stage, &["--shared", "key"], "@tells; @exec -q --shared key @tells");
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_excludes_the_outer_one_is_refused_and_not_waited_for() {
    let stage = Stage::new();
    let marker = stage.path("started");
    for (share, inner) in [
        (&[][..], "--slots 3"),
        (&[], "--shared"),
        (&["--slots", "3"], ""),
        (&["--shared"], "-w 10m"),
        (&["--slots", "8", "--units", "3"], "--slots 8 --units 6"),
    ] {
        let script = format!("@exec {inner} key touch {marker}");
        let ran = outer(&stage, &[share, &["key"]].concat(), &script);
        assert_eq!(ran.code, Some(80), "{share:?} {inner}: {ran:?}");
        assert!(
            ran.err.starts_with("lockkeeper: 'key': an outer exec has the key with"),
            "{ran:?}"
        );
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        // Without a wait it is a key that is held.
        let script = format!("@exec -q -n {} key touch {marker}", inner.replace("-w 10m", ""));
        let ran = outer(&stage, &[share, &["key"]].concat(), &script);
        assert_eq!(ran, Ran { code: Some(75), out: String::new(), err: String::new() }, "{inner}");
    }
    assert!(!std::path::Path::new(&marker).exists());
}

/// A look names the first hundred leases of a key.
#[tokio::test(flavor = "multi_thread")]
async fn the_outer_lease_is_found_among_any_number_of_others() {
    let stage = Stage::new();
    let (http, marker) = (stage.service.http(), stage.path("started"));
    for (share, query) in [("--shared", "shared=true"), ("--slots=200", "slots=200")] {
        for _ in 0..105 {
            let path = format!("/locks/key{share}?{query}&ttl=10m");
            assert_eq!(http.post(&path, "").await.status, 201);
        }
        let key = format!("key{share}");
        let words = ["-t", "1h", share, &key];
        let ran = outer(&stage, &words, &format!("@tells; @exec -q {share} {key} @tells"));
        let lines: Vec<_> = ran.out.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "{ran:?}");
        let ran = outer(&stage, &words, &format!("@exec -w 5 {key} touch {marker}"));
        assert_eq!(ran.code, Some(80), "{ran:?}");
        let ran = outer(&stage, &words, &format!("{BINARY} acquire -w 5 {key}"));
        assert_eq!(ran.code, Some(80), "{ran:?}");
    }
    assert!(!std::path::Path::new(&marker).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_goes_without_the_keys_that_an_outer_exec_has_in_its_way() {
    let stage = Stage::new();
    let shared = ["--shared", "a"];
    let ran = outer(&stage, &shared, "@exec -w 10m --any-of b a @tells");
    assert!(ran.code == Some(0) && ran.out.starts_with("b "), "{ran:?}");
    let ran = outer(&stage, &shared, "@exec -q -w 10m --any-of a b @tells");
    assert!(ran.code == Some(0) && ran.out.starts_with("b "), "{ran:?}");
    let both = ["--shared", "--also", "b", "a"];
    let ran = outer(&stage, &both, "@exec -w 10m --any-of b a @tells");
    assert_eq!((ran.code, &*ran.out), (Some(80), ""), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inner_command_shares_the_slot_of_the_outer_one() {
    let stage = Stage::new();
    let url = stage.url();
    let script =
        format!("@tells; @exec -q --slots 3 key sh -c '{TELLS}; curl -sS {url}/locks/key'");
    let ran = outer(&stage, &["--slots", "3", "key"], &script);
    let lines: Vec<_> = ran.out.lines().collect();
    let [own, inner, look] = lines[..] else { panic!("{ran:?}") };
    assert!(own.ends_with(" 1"), "{ran:?}");
    assert_eq!(own, inner);
    assert!(look.contains("\"holders\":1"), "{ran:?}");
    // So are its units, as far as they go.
    let units = ["--slots", "8", "--units", "3", "key"];
    let ran = outer(&stage, &units, "@tells; @exec -q --slots 8 --units 2 key @tells");
    let lines: Vec<_> = ran.out.lines().collect();
    let [own, inner] = lines[..] else { panic!("{ran:?}") };
    assert!(own == inner && own.ends_with(" none"), "{ran:?}");
    let more = format!("@exec -q --slots 8 --units 5 key curl -sS {url}/locks/key");
    let ran = outer(&stage, &units, &more);
    assert!(ran.out.contains(r#""holders":2,"slots":8,"units":8"#), "{ran:?}");
    // Semaphores of other sizes do not exclude each other.
    let ran = outer(&stage, &["--slots", "3", "key"], "@exec -q --slots 5 key @tells");
    assert!(ran.code == Some(0) && ran.out.ends_with(" 2\n"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_keys_those_are_acquired_that_no_outer_exec_has() {
    let stage = Stage::new();
    let url = stage.url();
    let tells = format!("{TELLS}; echo \"$LOCK_FENCING_TOKENS\"");
    let script = format!("@exec -q --also b a sh -c '{tells}'; curl -sS {url}/locks; @tells");
    let ran = outer(&stage, &["a"], &script);
    assert_eq!((ran.code, &*ran.err), (Some(0), ""), "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    let [inner, b, a, list] = lines[..] else { panic!("{ran:?}") };
    assert!(inner.starts_with("a ") && b.ends_with(" b") && a.ends_with(" a"), "{ran:?}");
    // b is released, a is not.
    let (list, own) = list.split_once("]}").unwrap();
    assert!(list.contains("\"key\":\"a\"") && !list.contains("\"key\":\"b\""), "{ran:?}");
    assert_eq!(own, inner);
    // A pool has one that will do.
    let ran = outer(&stage, &["a"], "@exec -q --any-of a b @tells");
    assert!(ran.code == Some(0) && ran.out.starts_with("a "), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_does_not_wait_for_its_own_parent() {
    let stage = Stage::new();
    let acquire = |words: &str| outer(&stage, &["key"], &format!("{BINARY} acquire {words}"));
    for words in ["key", "-w 10m key"] {
        let ran = acquire(words);
        assert_eq!((ran.code, &*ran.out), (Some(80), ""), "{words}: {ran:?}");
        assert!(ran.err.starts_with("lockkeeper: 'key': the `lockkeeper exec` around"), "{ran:?}");
    }
    assert_eq!(acquire("-q -n key").code, Some(75));
    assert_eq!(acquire("other").code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_has_ended_is_nobodys() {
    let stage = Stage::new();
    let ran = outer(&stage, &["key"], "env | grep ^LOCK_");
    let mut exec = stage.exec(&["key", "sh", "-c", TELLS]);
    exec.envs(ran.out.lines().filter_map(|line| line.split_once('=')));
    let later = Ran::of(exec.output().unwrap());
    assert_eq!((later.code, &*later.err), (Some(0), ""), "{later:?}");
    assert!(!ran.out.contains(later.out.split(' ').nth(1).unwrap()), "{later:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_an_inner_exec_is_given_back_when_the_outer_one_is_lost_or_killed() {
    let stage = Stage::new();
    for fault in ["force", "KILL"] {
        let ticker = Ticker::new(stage.path(fault));
        let words = ticker.words(Manners::Deaf);
        let inner = [BINARY, "exec", "-t", "1h", "inner"].map(str::to_owned);
        let words: Vec<_> = ["-t", "3s", "-k", "1s", "outer"]
            .into_iter()
            .chain(inner.iter().map(String::as_str))
            .chain(words.iter().map(String::as_str))
            .collect();
        let going = Going::start(stage.exec(&words));
        let pid = ticker.ticks().await;
        assert_eq!(stage.look("inner").await["held"], true);
        match fault {
            "force" => {
                assert_eq!(stage.service.http().delete("/admin/locks/outer").await.status, 200);
                assert_eq!(going.end().code, Some(79));
            }
            fault => {
                going.signal(fault);
                assert_eq!(going.end().code, None);
            }
        }
        dead(pid).await;
        for key in ["inner", "outer"] {
            let free = async || (stage.look(key).await["held"] == false).then_some(());
            eventually(PATIENCE, free).await;
        }
    }
}
