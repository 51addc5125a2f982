//! Owns how rows of words and figures stand below each other.
//! Must never know: what they say.

/// Columns as wide as they have to be, two spaces apart: the first to the left, the others to the right.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let cell = |(column, cell): (usize, &String)| {
        let space = " ".repeat(widths[column] - cell.chars().count());
        if column == 0 { format!("{cell}{space}") } else { format!("{space}{cell}") }
    };
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A row of this.
pub(super) fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_below_each_other_and_no_line_ends_in_blanks() {
        let rows = [row(&["a", "1"]), row(&["long ±", "100", ""]), row(&["b"])];
        assert_eq!(table(&rows), "a         1\nlong ±  100\nb\n");
    }
}
