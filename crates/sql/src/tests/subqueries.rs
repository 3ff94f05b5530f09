//! Tests of the errors for subqueries that DataFusion cannot run.

use super::*;

#[test]
fn a_correlated_subquery_that_is_no_join_is_refused_in_plain_words() {
    let tables = tables(&some_rows(1), &[(Some(1), 3)]);
    for (text, what) in [
        ("SELECT v, (SELECT sum(u.k) FROM u WHERE u.k < t.k) FROM t", "(SELECT ...) of sum(u.k) names t.k"),
        (
            "SELECT v FROM t WHERE v > (SELECT sum(u.k) FROM u WHERE u.k < t.k)",
            "(SELECT ...) of sum(u.k) names t.k",
        ),
        (
            "SELECT v FROM t WHERE k IN (SELECT u.k FROM u WHERE u.w < t.s LIMIT 1)",
            "IN (SELECT ...) of k names t.s",
        ),
        ("SELECT v, EXISTS (SELECT w FROM u WHERE u.k < t.k) FROM t", "EXISTS (SELECT ...) of w names t.k"),
    ] {
        let error = refused(text, &tables);
        assert!(
            error.contains(what) && error.contains("write a join") && !error.contains("logical expression"),
            "{text}: {error}"
        );
    }
    for text in [
        "SELECT v, (SELECT sum(u.k) FROM u WHERE u.k = t.k) AS s FROM t ORDER BY v, s",
        "SELECT v, (SELECT sum(u.k) FROM u) AS s FROM t ORDER BY v, s",
        "SELECT v FROM t WHERE EXISTS (SELECT w FROM u WHERE u.k < t.k) ORDER BY v",
    ] {
        check(text, &tables);
    }
}
