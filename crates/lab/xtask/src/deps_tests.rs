use super::*;

#[test]
fn the_table_itself_points_down() {
    for (i, (name, allowed, _)) in RULES.iter().enumerate() {
        for used in *allowed {
            let row = RULES.iter().position(|r| r.0 == *used).unwrap();
            assert!(row < i, "{name} stands above {used}");
        }
    }
}

#[test]
fn this_workspace_follows_the_table() {
    assert_eq!(faults(&edges().unwrap()), Vec::<String>::new());
}

#[test]
fn an_edge_against_the_direction_is_named() {
    let mut edges = edges().unwrap();
    edges.get_mut(LOG).unwrap().push((BTREE.into(), false));
    edges.get_mut(BTREE).unwrap().push((FS.into(), true));
    edges.insert("kedge-new".into(), vec![]);
    edges.remove(SIM);
    assert_eq!(
        faults(&edges),
        [
            "the tests of kedge-btree must not depend on kedgefs",
            "kedge-log must not depend on kedge-btree",
            "kedge-new has no row in the table",
            "kedge-sim is in the table but not in the workspace",
        ]
    );
}
