//! `--any-of`: a lease of one of several keys.

use crate::exec::{Going, Stage};
use crate::support::{PATIENCE, eventually};

const POOL: [&str; 3] = ["printer/1", "printer/2", "printer/3"];

/// The words for a lease of any of the pool, whose COMMAND tells the key.
fn any<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let mut words = options.to_vec();
    words.extend(["--any-of", POOL[1], "--any-of", POOL[2], POOL[0]]);
    words.extend(["sh", "-c", "echo $LOCK_KEY"]);
    words
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_that_is_free_is_taken_and_given_back() {
    let stage = Stage::new();
    for free in POOL {
        for other in POOL.into_iter().filter(|key| *key != free) {
            stage.hold(other).await;
        }
        let ran = stage.ran(&any(&["-n"]));
        assert_eq!((ran.code, ran.out.trim()), (Some(0), free), "{ran:?}");
        assert_eq!(stage.look(free).await["held"], false);
        for other in POOL.into_iter().filter(|key| *key != free) {
            stage.let_go(other).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_work_at_once_as_there_are_keys() {
    let stage = Stage::new();
    let working = || {
        let mut words = any(&["-w", "30s"]);
        *words.last_mut().unwrap() = "echo $LOCK_KEY; exec sleep 60";
        Going::start(stage.exec(&words))
    };
    let mut all = [working(), working(), working()];
    let mut keys = all.each_mut().map(|going| going.line());
    keys.sort_unstable();
    assert_eq!(keys, POOL);
    assert_eq!(stage.ran(&any(&["-n"])).code, Some(75));
    let late = stage.ran(&any(&["-w", "300ms", "-E", "3"]));
    assert_eq!(late.code, Some(3), "{late:?}");
    for key in POOL {
        assert_eq!(stage.look(key).await["waiters"], 0, "{key}");
    }
    let mut next = working();
    let [done, others @ ..] = all;
    done.signal("TERM");
    assert_eq!(done.end().code, Some(143));
    assert!(POOL.contains(&next.line().as_str()));
    for going in others.into_iter().chain([next]) {
        going.signal("TERM");
        assert_eq!(going.end().code, Some(143));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_wait_for_any_of_them_and_leaves_nothing() {
    let stage = Stage::new();
    for key in POOL {
        stage.hold(key).await;
    }
    let going = Going::start(stage.exec(&any(&[])));
    let waits = async || {
        for key in POOL {
            if stage.look(key).await["waiters"] == 1 {
                return Some(());
            }
        }
        None
    };
    eventually(PATIENCE, waits).await;
    going.signal("TERM");
    assert_eq!(going.end().code, Some(143));
    for key in POOL {
        stage.waited_for(key, 0).await;
        stage.let_go(key).await;
        assert_eq!(stage.look(key).await["held"], false);
    }
}
