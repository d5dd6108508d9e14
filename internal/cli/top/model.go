package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/podusage"
	"github.com/berthrun/berth/internal/printable"
)

// sample is what one reading of the runtime has found.
type sample struct {
	at    time.Time
	usage podusage.Reading
	jobs  []berthapi.Job
	// noJobs is true for a runtime that is not berth.
	noJobs bool
}

// order is what rows are sorted by.
type order int

const (
	byCPU order = iota
	byMemory
	byNetwork
	byRestarts
	byAge
	byState
	byName
	orders // how many there are
)

func (o order) String() string {
	return [...]string{"cpu", "memory", "network", "restarts", "age", "state", "name"}[o]
}

// orderNames are the values of --sort.
func orderNames() []string {
	var names []string
	for o := range orders {
		names = append(names, o.String())
	}
	return names
}

// view is what the screen shows.
type view int

const (
	tableView view = iota
	jobsView
	helpView
	logView
)

// model is what is known of the runtime, and what the user has chosen to see of it. Nothing in it is about a
// terminal but its size.
type model struct {
	node, endpoint string
	interval       time.Duration

	// now is the time of the frame.
	now    time.Time
	before *sample
	last   *sample
	pods   []podusage.Pod

	link link

	order   order
	reverse bool
	filter  string
	// all shows pods that are stopped, folded hides containers.
	all, folded bool

	view view
	// filtering is true while the user types the filter.
	filtering bool
	// rows are those that the choices select, in their order; cursor is one of them.
	rows   []row
	cursor int
	// offset is the first row on the screen, jobOffset that of the view of jobs.
	offset, jobOffset int
	log               *logShown
	message           string
	messageUntil      time.Time

	width, height int
}

// row is a pod, or a container of it.
type row struct {
	pod       *podusage.Pod
	container *podusage.Container // nil for the pod itself
}

func (r row) id() string {
	if r.container != nil {
		return r.container.ID
	}
	return r.pod.ID
}

// messageTime is how long a message stays.
const messageTime = 5 * time.Second

// say shows a message for some seconds.
func (m *model) say(message string) {
	m.message, m.messageUntil = printable.Text(message), m.now.Add(messageTime)
}

// add takes the next sample.
func (m *model) add(s *sample) {
	m.before, m.last = m.last, s
	var earlier *podusage.Reading
	if m.before != nil {
		earlier = &m.before.usage
	}
	m.pods = podusage.Join(earlier, &s.usage)
	m.choose()
}

// choose makes the rows from the pods and the user's choices. The cursor stays on its row. If the row has gone, it goes
// to the pod of it, or stays on its line.
func (m *model) choose() {
	at, of := "", ""
	if r, ok := m.current(); ok {
		at, of = r.id(), r.pod.ID
	}
	var shown []*podusage.Pod
	for i := range m.pods {
		if p := &m.pods[i]; (p.Ready || m.all) && m.matches(p) {
			shown = append(shown, p)
		}
	}
	slices.SortStableFunc(shown, func(a, b *podusage.Pod) int {
		if m.reverse {
			a, b = b, a
		}
		return m.order.compare(a, b)
	})
	m.rows = m.rows[:0]
	for _, p := range shown {
		m.rows = append(m.rows, row{pod: p})
		for i := range p.Containers {
			if !m.folded {
				m.rows = append(m.rows, row{p, &p.Containers[i]})
			}
		}
	}
	for _, wanted := range []string{at, of} {
		if i := slices.IndexFunc(m.rows, func(r row) bool { return r.id() == wanted }); i >= 0 {
			m.cursor = i
			break
		}
	}
	m.cursor = max(min(m.cursor, len(m.rows)-1), 0)
}

// matches reports whether the filter is part of the name of a pod or of one of its containers.
func (m *model) matches(p *podusage.Pod) bool {
	wanted := strings.ToLower(m.filter)
	has := func(name string) bool { return strings.Contains(strings.ToLower(name), wanted) }
	return has(p.FullName()) || slices.ContainsFunc(p.Containers, func(c podusage.Container) bool { return has(c.Name) })
}

// compare orders pods: the largest figure first, the newest pod first, names from a to z.
func (o order) compare(a, b *podusage.Pod) int {
	switch o {
	case byCPU:
		return cmp.Compare(b.CPU, a.CPU)
	case byMemory:
		return cmp.Compare(b.Memory, a.Memory)
	case byNetwork:
		return cmp.Compare(b.Received+b.Sent, a.Received+a.Sent)
	case byRestarts:
		return cmp.Compare(b.Restarts, a.Restarts)
	case byAge:
		return b.Created.Compare(a.Created)
	case byState:
		return cmp.Compare(stateOrder(a), stateOrder(b))
	}
	return cmp.Compare(a.FullName(), b.FullName())
}

// stateOrder puts first what needs attention: pods that are not ready, then those with a container that does not run.
func stateOrder(p *podusage.Pod) int {
	switch {
	case !p.Ready:
		return 0
	case p.Running() < len(p.Containers):
		return 1
	}
	return 2
}

// current is the row of the cursor.
func (m *model) current() (row, bool) {
	if m.cursor >= len(m.rows) {
		return row{}, false
	}
	return m.rows[m.cursor], true
}

// target is the container that logs and exec mean: that of the cursor, or the only one of its pod, or the only one
// that runs.
func (m *model) target() (pod *podusage.Pod, container *podusage.Container, ok bool) {
	r, ok := m.current()
	if !ok {
		m.say("there is no pod to choose")
		return nil, nil, false
	}
	if r.container != nil {
		return r.pod, r.container, true
	}
	var running []*podusage.Container
	for i := range r.pod.Containers {
		if c := &r.pod.Containers[i]; c.Running() {
			running = append(running, c)
		}
	}
	switch {
	case len(r.pod.Containers) == 1:
		return r.pod, &r.pod.Containers[0], true
	case len(running) == 1:
		return r.pod, running[0], true
	case len(r.pod.Containers) == 0:
		m.say(r.pod.FullName() + " has no container")
	case m.folded:
		m.say(r.pod.FullName() + " has several containers: press c to show them, and choose one")
	default:
		m.say(r.pod.FullName() + " has several containers: choose one of the lines below it")
	}
	return nil, nil, false
}
