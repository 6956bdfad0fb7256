//! Which combinations of schemes, suites and volumes a test goes through.
//!
//! In `make test` one axis varies at a time, and the others stay at their defaults; `make soak` sets `STRONGROOM_AXES=product`
//! and goes through the full product.

use strongroom_block::Suite;
use strongroom_channel::Scheme;

/// Every scheme, the default first.
pub(crate) fn schemes() -> Vec<Scheme> {
    default_first(Scheme::ALL, Scheme::Lazy)
}

/// Every suite, the default first.
pub(crate) fn suites() -> Vec<Suite> {
    default_first(&Suite::ALL, Suite::default())
}

/// Every pair of a value of `left` and one of `right`, ordered by `left`; unless the full product was asked for, only those pairs in
/// which at least one value is the first of its axis.
pub(crate) fn pairs<A: Clone, B: Clone>(left: &[A], right: &[B]) -> Vec<(A, B)> {
    let product = std::env::var_os("STRONGROOM_AXES").is_some_and(|axes| axes == "product");
    choose(left, right, product)
}

fn choose<A: Clone, B: Clone>(left: &[A], right: &[B], product: bool) -> Vec<(A, B)> {
    let mut pairs = Vec::new();
    for (row, a) in left.iter().enumerate() {
        let columns = if product || row == 0 { right } else { &right[..right.len().min(1)] };
        pairs.extend(columns.iter().map(|b| (a.clone(), b.clone())));
    }
    pairs
}

fn default_first<T: Copy + PartialEq>(all: &[T], default: T) -> Vec<T> {
    assert!(all.contains(&default), "the default is one of them");
    std::iter::once(default).chain(all.iter().copied().filter(|value| *value != default)).collect()
}

#[test]
fn one_axis_varies_at_a_time_unless_the_product_is_asked_for() {
    assert_eq!(choose(&[1, 2, 3], &['a', 'b'], false), [(1, 'a'), (1, 'b'), (2, 'a'), (3, 'a')]);
    assert_eq!(choose(&[1, 2], &['a', 'b'], true), [(1, 'a'), (1, 'b'), (2, 'a'), (2, 'b')]);
    let three = choose(&[1, 2], &choose(&['a', 'b'], &[true, false], false), false);
    assert_eq!(three, [(1, ('a', true)), (1, ('a', false)), (1, ('b', true)), (2, ('a', true))]);
    assert_eq!(schemes().len(), Scheme::ALL.len());
    assert_eq!((schemes()[0], suites()[0]), (Scheme::Lazy, Suite::default()));
}
