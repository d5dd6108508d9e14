package top

import (
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/podusage"
	"github.com/berthrun/berth/internal/printable"
)

// The smallest terminal that shows something.
const (
	minWidth  = 40
	minHeight = 8
)

// minRows is how many rows of pods the jobs leave room for.
const minRows = 3

// render is the frame: as many lines as the terminal has, in the model's size.
func (m *model) render() []screen.Line {
	if m.width < minWidth || m.height < minHeight {
		return screen.Fill([]screen.Line{screen.Text(fmt.Sprintf("the terminal has %dx%d; %dx%d is needed", m.width, m.height, minWidth, minHeight), screen.Plain)}, m.height)
	}
	switch m.view {
	case helpView:
		return m.renderHelp()
	case jobsView:
		return m.renderJobs()
	case logView:
		return m.renderLog()
	}
	return m.renderTable()
}

// head is what is above every view.
func (m *model) head() []screen.Line {
	title := "berth top  " + printable.Text(m.node) + "  " + printable.Text(m.endpoint)
	clock := m.now.Format("15:04:05")
	if m.interval > 0 {
		clock += fmt.Sprintf("  every %s", m.interval)
	}
	lines := []screen.Line{
		screen.Text(screen.Left(title, m.width-screen.Width(clock)-1), screen.Bold).Add(" "+clock, screen.Plain),
		screen.Text(m.totals(), screen.Plain),
	}
	if status, st := m.link.status(m.now); status != "" {
		lines = append(lines, screen.Text(printable.Text(status), st))
	}
	return lines
}

func (m *model) totals() string {
	ready, running, containers := 0, 0, 0
	for i := range m.pods {
		p := &m.pods[i]
		if !p.Ready {
			continue
		}
		ready++
		running += p.Running()
		containers += len(p.Containers)
	}
	parts := []string{fmt.Sprintf("Pods %d ready", ready)}
	if other := len(m.pods) - ready; other > 0 {
		parts[0] += fmt.Sprintf(", %d not", other)
	}
	parts = append(
		parts, fmt.Sprintf("Containers %d of %d running", running, containers),
		"CPU "+percent(podusage.Total(m.pods, func(f *podusage.Figures) float64 { return f.CPU })),
		"Memory "+size(podusage.Total(m.pods, func(f *podusage.Figures) float64 { return f.Memory })),
	)
	return strings.Join(parts, "  ")
}

// foot is the last line: what the user types, a message, or the keys.
func (m *model) foot(keys string) screen.Line {
	switch {
	case m.filtering:
		return screen.Text("filter: "+printable.Text(m.filter), screen.Plain).Add(" ", screen.Reverse).Add("  Enter keeps it, Esc clears it", screen.Dim)
	case m.message != "" && m.now.Before(m.messageUntil):
		return screen.Text(m.message, screen.Warn)
	}
	return screen.Text(keys, screen.Dim)
}

func (m *model) renderTable() []screen.Line {
	lines := m.head()
	jobs := m.jobPanel()
	room := m.height - len(lines) - 1 - len(jobs) - 1
	if room < minRows {
		jobs, room = nil, room+len(jobs)
	}
	m.offset = scrolled(m.offset, m.cursor, room, len(m.rows))
	widths := m.chooseColumns(m.width)
	lines = append(lines, m.tableHeader(widths))
	for i := m.offset; i < min(m.offset+room, len(m.rows)); i++ {
		l := m.tableRow(m.rows[i], widths)
		if i == m.cursor {
			l = l.In(screen.Reverse)
		}
		lines = append(lines, l)
	}
	if len(m.rows) == 0 {
		lines = append(lines, screen.Text(" "+m.emptyReason(), screen.Dim))
	}
	lines = screen.Fill(lines, m.height-len(jobs)-1)
	lines = append(lines, jobs...)
	return append(lines, m.foot(m.tableKeys()))
}

func (m *model) emptyReason() string {
	switch {
	case m.last == nil:
		return "reading the figures"
	case m.filter != "":
		return fmt.Sprintf("no pod or container has %q in its name; / and Esc show all", printable.Text(m.filter))
	case len(m.pods) > 0 && !m.all:
		return "no pod is ready; a also shows the others"
	}
	return "there is no pod"
}

func (m *model) tableKeys() string {
	keys := "q quit  ? help  l log  e shell  s sort:" + m.order.String()
	if m.reverse {
		keys += " reversed"
	}
	keys += "  / filter"
	if m.filter != "" {
		keys += ":" + printable.Text(m.filter)
	}
	for _, k := range []struct {
		text string
		on   bool
	}{{"  c fold", m.folded}, {"  a all", m.all}, {"  j jobs", false}} {
		keys += k.text
		if k.on {
			keys += "*"
		}
	}
	return keys
}

// scrolled is the offset at which the cursor is on the screen, the closest to the present one.
func scrolled(offset, cursor, room, rows int) int {
	offset = max(min(offset, cursor), cursor-room+1)
	return max(min(offset, rows-room), 0)
}

func (m *model) renderHelp() []screen.Line {
	lines := append(m.head(), nil)
	for _, k := range helpKeys() {
		lines = append(lines, screen.Text("  "+screen.Left(k[0], 16), screen.Bold).Add(k[1], screen.Plain))
	}
	lines = screen.Fill(lines, m.height-1)
	return append(lines, screen.Text("any key goes back", screen.Dim))
}

func helpKeys() [][2]string {
	return [][2]string{
		{"Up Down", "choose a pod or a container"},
		{"PgUp PgDn", "a page; Home and End: the first and the last"},
		{"l Enter", "the log of the container, as it grows"},
		{"e", "a shell in the container (--shell); its end comes back here"},
		{"s S", "sort by the next column; the other way round"},
		{"/", "filter by a part of the name of a pod or container"},
		{"c", "hide or show containers"},
		{"a", "also show pods that are not ready"},
		{"j", "all jobs, with what they wait for"},
		{"r", "read the figures now"},
		{"Ctrl-L", "draw the screen again"},
		{"q Ctrl-C", "quit; in another view q and Esc go back"},
		{"", ""},
		{"CPU", "percent of one processor"},
		{"MEMORY", "working set"},
		{"RECV/s SENT/s", "traffic of the pod, all interfaces"},
		{"RST", "restarts"},
	}
}
