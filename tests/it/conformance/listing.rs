//! The list of held keys.

use crate::conformance::{on_every_store, on_routed_stores};

on_every_store!(tests:
    a_list_has_the_held_keys_in_order_page_by_page,
    a_prefix_is_taken_as_it_stands,
    a_key_that_is_held_throughout_is_on_one_page,
);

on_routed_stores!(tests:
    a_list_has_the_held_keys_in_order_page_by_page,
    a_prefix_is_taken_as_it_stands,
    a_key_that_is_held_throughout_is_on_one_page,
);

mod tests {
    use std::collections::BTreeSet;

    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::store::{Ask, Page, Target};

    use crate::conformance::{LIMITS, Stage, claim, key, token};

    async fn names(stage: &Stage, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        let page = Page { prefixes: [prefix.into()].into(), after: after.map(Into::into), limit };
        let statuses = stage.store.list(&page).await.unwrap().locks;
        statuses.into_iter().map(|status| status.key.to_string()).collect()
    }

    pub(super) async fn a_list_has_the_held_keys_in_order_page_by_page(stage: Stage) {
        for name in ["b/2", "a", "b/1", "gone", "b/3", "c"] {
            stage.granted(&claim(name, "one", 60_000)).await;
        }
        stage.store.end(&Target::of(&key("gone"), &token("one"), None)).await.unwrap();
        assert_eq!(names(&stage, "", None, 9).await, ["a", "b/1", "b/2", "b/3", "c"]);
        assert_eq!(names(&stage, "", None, 2).await, ["a", "b/1"]);
        assert_eq!(names(&stage, "", Some("b/1"), 2).await, ["b/2", "b/3"]);
        assert_eq!(names(&stage, "b/", Some("b/1"), 9).await, ["b/2", "b/3"]);
        assert!(names(&stage, "d", None, 9).await.is_empty());
        let page = Page {
            prefixes: ["c", "b/2", "b/"].map(Into::into).into(),
            after: Some("b/1".into()),
            limit: 2,
        };
        let several = stage.store.list(&page).await.unwrap().locks;
        let several: Vec<_> = several.iter().map(|status| status.key.as_str()).collect();
        assert_eq!(several, ["b/2", "b/3"]);
        let page = Page { prefixes: ["c".into()].into(), after: None, limit: 1 };
        let held = stage.store.list(&page).await.unwrap().locks.remove(0);
        assert_eq!(
            held,
            stage
                .store
                .look(&key("c"), None, 0)
                .await
                .map(|now| {
                    let lockkeeper::lock::lease::Holder { left, held, .. } =
                        held.holder.clone().unwrap();
                    assert!(held.is_some());
                    let times = |holder| lockkeeper::lock::lease::Holder { left, held, ..holder };
                    let holder = now.holder.map(times);
                    lockkeeper::lock::lease::LockStatus { holder, ..now }
                })
                .unwrap()
        );
    }

    pub(super) async fn a_prefix_is_taken_as_it_stands(stage: Stage) {
        for name in ["a*b", "axb", "a?b", "a[x]b", "a\\b"] {
            stage.granted(&claim(name, "one", 60_000)).await;
        }
        for prefix in ["a*", "a?", "a[", "a\\"] {
            assert_eq!(names(&stage, prefix, None, 9).await.len(), 1, "{prefix}");
        }
    }

    pub(super) async fn a_key_that_is_held_throughout_is_on_one_page(stage: Stage) {
        let held: BTreeSet<String> = (0..500).map(|number| format!("held/{number}")).collect();
        for name in &held {
            stage.granted(&claim(name, "one", 600_000)).await;
        }
        let store = stage.store.clone();
        let mut others = tokio::task::JoinSet::new();
        others.spawn(async move {
            for number in 0.. {
                let other = claim(&format!("held/x{}", number % 97), "two", 60_000);
                store.ask(&other, Ask::Once(None)).await.unwrap();
                store.end(&Target::of(&other.key, &other.token, None)).await.unwrap();
            }
        });
        let locks = Locks::new(stage.store.clone(), LIMITS);
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = locks.list(vec!["held/".into()], cursor, 70).await.unwrap();
            seen.extend(page.locks.into_iter().map(|status| status.key.to_string()));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        others.abort_all();
        seen.retain(|name| !name.starts_with("held/x"));
        assert_eq!(seen.len(), held.len(), "none twice and none left out");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), held);
    }
}
