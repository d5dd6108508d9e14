package top

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/printable"
)

// rateTime is the time between the two readings of a rate.
const rateTime = time.Second

// printOnce reads twice, for rates, and prints one frame of all rows without styles.
func printOnce(ctx context.Context, conn *criclient.Conn, m *model, w io.Writer) error {
	for i := range 2 {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(rateTime):
			}
		}
		s, err := read(ctx, conn)
		if err != nil {
			return err
		}
		m.now = s.at
		m.add(s)
	}
	return m.print(w)
}

// print writes everything that is known, in columns as wide as needed.
func (m *model) print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", m.totals())
	columns := columnsOfTable()
	header := []string{"POD / CONTAINER"}
	for i := range columns {
		header = append(header, columns[i].name)
	}
	var rows [][]string
	for _, r := range m.rows {
		cells := []string{r.name()}
		for i := range columns {
			cell, _ := columns[i].cell(m, r)
			cells = append(cells, cell)
		}
		rows = append(rows, cells)
	}
	if err := show.Table(w, header, rows); err != nil || len(m.last.jobs) == 0 {
		return err
	}
	fmt.Fprintln(w)
	rows = nil
	for i := range m.last.jobs {
		j := &m.last.jobs[i]
		kind, since := jobWords(j)
		rows = append(rows, []string{printable.Text(kind), printable.Text(j.Key), printable.Text(j.Stage), since, show.Or(printable.Text(j.WaitsFor))})
	}
	return show.Table(w, []string{"JOB", "OBJECT", "STAGE", "SINCE", "WAITS FOR"}, rows)
}
