package top

import (
	"unicode"

	"github.com/berthrun/berth/internal/cli/top/screen"
)

// action is what a key needs from outside of the model.
type action int

const (
	nothing action = iota
	quit
	suspend
	redraw
	refresh
	openLog
	closeLog
	runExec
)

// maxFilter bounds the filter's length in characters.
const maxFilter = 64

// press changes the model by one key.
func (m *model) press(k screen.Key) action {
	switch {
	case k.Name == screen.InterruptKey:
		return quit
	case k.Name == screen.SuspendKey:
		return suspend
	case k.Name == screen.RedrawKey:
		return redraw
	case m.filtering:
		return m.pressFilter(k)
	}
	m.message = ""
	switch m.view {
	case helpView:
		m.view = tableView
		return nothing
	case jobsView:
		return m.pressJobs(k)
	case logView:
		return m.pressLog(k)
	}
	return m.pressTable(k)
}

func (m *model) pressFilter(k screen.Key) action {
	typed := []rune(m.filter)
	switch {
	case k.Name == screen.EnterKey:
		m.filtering = false
	case k.Name == screen.EscapeKey:
		m.filtering, typed = false, nil
	case k.Name == screen.ClearKey:
		typed = nil
	case k.Name == screen.BackspaceKey && len(typed) > 0:
		typed = typed[:len(typed)-1]
	case k.Name == screen.CharKey && unicode.IsPrint(k.Char) && len(typed) < maxFilter:
		typed = append(typed, k.Char)
	}
	m.filter = string(typed)
	m.choose()
	return nothing
}

func (m *model) pressTable(k screen.Key) action {
	page := max(m.height-8, 1)
	switch k.Name {
	case screen.UpKey:
		m.moveTo(m.cursor - 1)
	case screen.DownKey:
		m.moveTo(m.cursor + 1)
	case screen.PageUpKey:
		m.moveTo(m.cursor - page)
	case screen.PageDownKey:
		m.moveTo(m.cursor + page)
	case screen.HomeKey:
		m.moveTo(0)
	case screen.EndKey:
		m.moveTo(len(m.rows) - 1)
	case screen.EnterKey:
		return openLog
	case screen.EscapeKey:
		m.filter = ""
		m.choose()
	case screen.CharKey:
		return m.pressLetter(k.Char)
	}
	return nothing
}

func (m *model) moveTo(row int) { m.cursor = max(min(row, len(m.rows)-1), 0) }

func (m *model) pressLetter(char rune) action {
	switch char {
	case 'q':
		return quit
	case 'l':
		return openLog
	case 'e':
		return runExec
	case 'r':
		return refresh
	case '?', 'h':
		m.view = helpView
	case 'j':
		m.view, m.jobOffset = jobsView, 0
	case 's':
		m.order, m.reverse = (m.order+1)%orders, false
	case 'S':
		m.reverse = !m.reverse
	case 'c':
		m.folded = !m.folded
	case 'a':
		m.all = !m.all
	case '/':
		m.filtering = true
	}
	m.choose()
	return nothing
}

func (m *model) pressJobs(k screen.Key) action {
	switch page := max(m.height-5, 1); {
	case k.Name == screen.EscapeKey, k.Char == 'q', k.Char == 'j':
		m.view = tableView
	case k.Char == '?':
		m.view = helpView
	case k.Name == screen.UpKey:
		m.jobOffset--
	case k.Name == screen.DownKey:
		m.jobOffset++
	case k.Name == screen.PageUpKey:
		m.jobOffset -= page
	case k.Name == screen.PageDownKey:
		m.jobOffset += page
	case k.Name == screen.HomeKey:
		m.jobOffset = 0
	}
	return nothing
}

// sideStep is how many columns the arrows move a log.
const sideStep = 20

func (m *model) pressLog(k screen.Key) action {
	l := m.log
	scroll := func(by int) { l.first, l.follow = l.first+by, false }
	switch page := max(m.height-3, 1); {
	case k.Name == screen.EscapeKey, k.Char == 'q', k.Char == 'l':
		m.view = tableView
		return closeLog
	case k.Name == screen.UpKey:
		scroll(-1)
	case k.Name == screen.DownKey:
		scroll(1)
	case k.Name == screen.PageUpKey:
		scroll(-page)
	case k.Name == screen.PageDownKey, k.Char == ' ':
		scroll(page)
	case k.Name == screen.HomeKey:
		l.first, l.follow = 0, false
	case k.Name == screen.EndKey, k.Char == 'f':
		l.follow = true
	case k.Name == screen.LeftKey:
		l.column = max(l.column-sideStep, 0)
	case k.Name == screen.RightKey:
		l.column += sideStep
	}
	return nothing
}
