//! Lists in pages: which entries a page has, and the token of the next one. A token is the name of the entry that the next page begins with,
//! so that entries may come and go between two pages, and nothing is kept for them.

use tonic::Status;

/// The entries of a page, and the token of the next one (empty if there is none). `entries` are sorted by name.
///
/// # Errors
/// `INVALID_ARGUMENT` for a negative number, `ABORTED` for a token that no page gave.
pub(crate) fn page<T>(
    mut entries: Vec<T>,
    name: impl Fn(&T) -> String,
    starting_token: &str,
    max_entries: i32,
    is_token: impl Fn(&str) -> bool,
) -> Result<(Vec<T>, String), Status> {
    let most = usize::try_from(max_entries).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    if !starting_token.is_empty() {
        if !is_token(starting_token) {
            return Err(Status::aborted("no page gave this starting_token; list from the beginning"));
        }
        entries.retain(|entry| *name(entry) >= *starting_token);
    }
    let mut next_token = String::new();
    if most > 0 && entries.len() > most {
        next_token = name(&entries[most]);
        entries.truncate(most);
    }
    Ok((entries, next_token))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn take(all: &[&str], token: &str, most: i32) -> Result<(Vec<String>, String), Code> {
        let entries = all.iter().map(|&name| name.to_owned()).collect();
        page(entries, Clone::clone, token, most, |token| token.starts_with('c')).map_err(|status| status.code())
    }

    #[test]
    fn pages_join_to_the_whole_list_even_while_it_changes() {
        let all = ["ca", "cb", "cc", "cd", "ce"];
        let (first, token) = take(&all, "", 2).unwrap();
        assert_eq!((first, token.as_str()), (vec!["ca".to_owned(), "cb".to_owned()], "cc"));
        let (second, token) = take(&all, "cc", 2).unwrap();
        assert_eq!((second, token.as_str()), (vec!["cc".to_owned(), "cd".to_owned()], "ce"));
        assert_eq!(take(&all, "ce", 2).unwrap(), (vec!["ce".to_owned()], String::new()));
        // The entry that the next page was to begin with is gone.
        assert_eq!(take(&["ca", "cb", "cd"], "cc", 2).unwrap(), (vec!["cd".to_owned()], String::new()));
        assert_eq!(take(&all, "", 0).unwrap().0.len(), 5);
        assert_eq!(take(&all, "", 5).unwrap().1, "");
        assert_eq!(take(&[], "cz", 5).unwrap(), (Vec::new(), String::new()));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        assert_eq!(take(&["ca"], "invalid", 0), Err(Code::Aborted));
        assert_eq!(take(&["ca"], "", -1), Err(Code::InvalidArgument));
    }
}
