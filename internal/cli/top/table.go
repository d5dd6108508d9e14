package top

import (
	"fmt"
	"strconv"
	"time"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/podusage"
	"github.com/berthrun/berth/internal/printable"
)

// column is one behind the names.
type column struct {
	name  string
	width int
	// atLeast is the width of a terminal that has room for it.
	atLeast   int
	alignLeft bool
	// need is when the column is left out of a narrow terminal: the largest first.
	need int
	cell func(m *model, r row) (string, screen.Style)
}

// minName is how wide names are at least.
const minName = 20

func columnsOfTable() []column {
	figure := func(pick func(*podusage.Figures) float64, show func(float64) string) func(*model, row) (string, screen.Style) {
		return func(_ *model, r row) (string, screen.Style) { return show(pick(r.figures())), screen.Plain }
	}
	return []column{
		{name: "ID", width: 12, atLeast: 100, alignLeft: true, need: 8, cell: func(_ *model, r row) (string, screen.Style) { return show.ID(printable.Text(r.id())), screen.Dim }},
		{name: "STATE", width: 8, alignLeft: true, need: 1, cell: func(_ *model, r row) (string, screen.Style) { return r.state() }},
		{name: "CPU", width: 6, need: 2, cell: figure(func(f *podusage.Figures) float64 { return f.CPU }, percent)},
		{name: "MEMORY", width: 7, need: 3, cell: figure(func(f *podusage.Figures) float64 { return f.Memory }, size)},
		{name: "RECV/s", width: 7, need: 6, cell: figure(func(f *podusage.Figures) float64 { return f.Received }, size)},
		{name: "SENT/s", width: 7, need: 7, cell: figure(func(f *podusage.Figures) float64 { return f.Sent }, size)},
		{name: "RST", width: 4, need: 5, cell: func(_ *model, r row) (string, screen.Style) { return r.restarts() }},
		{name: "AGE", width: 5, need: 4, cell: func(m *model, r row) (string, screen.Style) { return show.Age(m.now.Sub(r.created())), screen.Plain }},
	}
}

func (r row) figures() *podusage.Figures {
	if r.container != nil {
		return &r.container.Figures
	}
	return &r.pod.Figures
}

func (r row) state() (string, screen.Style) {
	switch {
	case r.container != nil && r.container.Running():
		return "running", screen.Good
	case r.container != nil:
		return r.container.State, screen.Warn
	case r.pod.Ready:
		return "ready", screen.Good
	}
	return "notready", screen.Bad
}

func (r row) created() time.Time {
	if r.container != nil {
		return r.container.Created
	}
	return r.pod.Created
}

func (r row) restarts() (string, screen.Style) {
	n := r.pod.Restarts
	if r.container != nil {
		n = r.container.Restarts
	}
	if n > 0 {
		return fmt.Sprint(n), screen.Warn
	}
	return "0", screen.Plain
}

// layout is the columns on a screen, and how wide names are.
type layout struct {
	name    int
	columns []column
}

// chooseColumns leaves out columns of a narrow terminal.
func (m *model) chooseColumns(width int) layout {
	all := columnsOfTable()
	for need := 9; need > 0; need-- {
		l := layout{name: width - 1}
		for _, c := range all {
			if c.need < need && width >= c.atLeast {
				l.columns = append(l.columns, c)
				l.name -= c.width + 1
			}
		}
		if l.name >= minName {
			return l
		}
	}
	return layout{name: width - 1}
}

func (m *model) tableHeader(l layout) screen.Line {
	header := " " + screen.Left("POD / CONTAINER", l.name)
	for _, c := range l.columns {
		header += " " + c.align(c.name)
	}
	return screen.Text(header, screen.Bold)
}

func (c *column) align(cell string) string {
	if c.alignLeft {
		return screen.Left(cell, c.width)
	}
	return screen.Right(cell, c.width)
}

func (m *model) tableRow(r row, l layout) screen.Line {
	out := screen.Text(" "+screen.Left(r.name(), l.name), screen.Plain)
	for _, c := range l.columns {
		cell, st := c.cell(m, r)
		out = out.Add(" ", screen.Plain).Add(c.align(cell), st)
	}
	return out
}

func (r row) name() string {
	if r.container != nil {
		return "  " + printable.Text(r.container.Name)
	}
	return printable.Text(r.pod.FullName())
}

// percent shows cores as percent of one.
func percent(cores float64) string {
	switch share := cores * 100; {
	case cores == podusage.Unknown:
		return "-"
	case share < 999.95:
		return strconv.FormatFloat(share, 'f', 1, 64) + "%"
	default:
		return strconv.FormatFloat(share, 'f', 0, 64) + "%"
	}
}

// size shows bytes.
func size(n float64) string {
	if n == podusage.Unknown {
		return "-"
	}
	return show.Size(uint64(max(n, 0)))
}
