//! Tables for people: columns as wide as what stands in them. Absent: what the tables say.

use std::fmt;

use strongroom_block::with_foreign_parts;

/// Rows under a heading. A column whose heading begins with `>` is set to the right.
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings and no rows.
    pub fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let heading = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Table { right, rows: vec![heading] }
    }

    /// Adds a row; a shorter one leaves its last columns empty. A cell may be what another machine has said: it can begin no line of its own.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| with_foreign_parts(cell).to_string()).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            // What stands last in a shorter row may run on: a message, say.
            let cells = self.rows.iter().filter(|row| row.len() == self.right.len());
            cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                match self.right[column] {
                    true => line += &format!("{cell:>width$}  "),
                    false => line += &format!("{cell:<width$}  "),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", ">SIZE", "USE"]);
        table.row(vec!["a-long-name".into(), "1".into(), "no".into()]);
        table.row(vec!["b".into(), "1000".into(), "yes".into()]);
        table.row(vec!["c".into(), "damaged beyond what fits".into()]);
        let lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "NAME         SIZE  USE");
        assert_eq!(lines[1], "a-long-name     1  no");
        assert_eq!(lines[2], "b            1000  yes");
        assert!(lines[3].starts_with("c            damaged"));
    }

    #[test]
    fn attack_operator_target_forges_rows_of_a_table() {
        let mut table = Table::new(&["NAME", ">SIZE"]);
        table.row(vec!["vault\nother".into(), "1\r".into()]);
        assert_eq!(table.to_string().lines().count(), 2, "{table}");
    }
}
