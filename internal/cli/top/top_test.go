package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/golden"
)

var began = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func u64(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

// world is what a runtime reports; each reading is a second after the one before.
type world struct {
	pods     []*runtimeapi.PodSandbox
	all      []*runtimeapi.Container
	jobs     []berthapi.Job
	readings int
}

func (w *world) pod(name string, ready bool) string {
	namespace, name, _ := strings.Cut(name, "/")
	id := fmt.Sprintf("%064x", 0xabc0+len(w.pods))
	state := runtimeapi.PodSandboxState_SANDBOX_READY
	if !ready {
		state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	w.pods = append(w.pods, &runtimeapi.PodSandbox{
		Id: id, State: state, CreatedAt: began.Add(-time.Duration(len(w.pods)+1) * 10 * time.Minute).UnixNano(),
		Metadata: &runtimeapi.PodSandboxMetadata{Namespace: namespace, Name: name},
	})
	return id
}

func (w *world) container(pod, name string, attempt uint32, state runtimeapi.ContainerState) {
	w.all = append(w.all, &runtimeapi.Container{
		Id: fmt.Sprintf("%064x", 0xc000+len(w.all)), PodSandboxId: pod, State: state, CreatedAt: began.Add(-5 * time.Minute).UnixNano(),
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
	})
}

// sample gives the n-th pod n tenths of a core, and n MB; its containers have shares of it.
func (w *world) sample() *sample {
	w.readings++
	at := time.Duration(w.readings) * time.Second
	s := &sample{at: began.Add(at), jobs: w.jobs}
	s.usage.Pods, s.usage.Containers = w.pods, w.all
	for i, p := range w.pods {
		if p.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			continue
		}
		cpu := func(share float64) *runtimeapi.CpuUsage {
			return &runtimeapi.CpuUsage{Timestamp: int64(at), UsageCoreNanoSeconds: u64(uint64(share * float64(at) * float64(i+1) / 10))}
		}
		linux := &runtimeapi.LinuxPodSandboxStats{
			Cpu: cpu(1), Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: u64(uint64(i+1) * 1_500_000)},
			Network: &runtimeapi.NetworkUsage{Timestamp: int64(at), DefaultInterface: &runtimeapi.NetworkInterfaceUsage{
				RxBytes: u64(uint64(w.readings * (i + 1) * 12_345)), TxBytes: u64(uint64(w.readings * (i + 1) * 999)),
			}},
		}
		for _, c := range w.all {
			if c.PodSandboxId == p.Id && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				linux.Containers = append(linux.Containers, &runtimeapi.ContainerStats{
					Attributes: &runtimeapi.ContainerAttributes{Id: c.Id}, Cpu: cpu(0.5), Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: u64(700_000)},
				})
			}
		}
		s.usage.PodStats = append(s.usage.PodStats, &runtimeapi.PodSandboxStats{Attributes: &runtimeapi.PodSandboxAttributes{Id: p.Id}, Linux: linux})
	}
	return s
}

// usual is a node with pods of all kinds.
func usual() *world {
	const running, exited, created = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_CREATED
	w := &world{}
	w.container(w.pod("default/web", true), "app", 0, running)
	dns := w.pod("kube-system/coredns-668d6bf9bc-7xk2p", true)
	w.container(dns, "coredns", 3, running)
	w.container(dns, "coredns", 2, exited)
	db := w.pod("default/database-0", true)
	w.container(db, "postgres", 0, running)
	w.container(db, "exporter", 0, created)
	w.container(w.pod("batch/job-is-done", false), "main", 0, exited)
	w.pod("default/a-very-long-name-of-a-pod-that-does-not-fit-into-any-column-of-a-terminal-at-all", true)
	return w
}

func newModel(w *world, width, height int) *model {
	m := &model{node: "node-1", endpoint: "unix:///run/berth/berth.sock", interval: 2 * time.Second, width: width, height: height}
	for range 2 {
		m.now = began.Add(time.Duration(w.readings+1) * time.Second)
		m.add(w.sample())
	}
	return m
}

// check compares the frame with a file, and with the size of the terminal.
func check(t *testing.T, name string, m *model) {
	t.Helper()
	frame := m.render()
	if len(frame) != m.height {
		t.Errorf("the frame has %d lines, want %d", len(frame), m.height)
	}
	var out strings.Builder
	for _, l := range frame {
		shown := strings.TrimRight(screen.Left(l.String(), m.width), " ")
		if n := screen.Width(shown); n > m.width {
			t.Errorf("a line has %d columns: %q", n, shown)
		}
		out.WriteString(shown + "\n")
	}
	golden.Check(t, "testdata/"+name+".txt", out.String())
}

func press(m *model, keys ...any) (last action) {
	for _, k := range keys {
		switch k := k.(type) {
		case string:
			for _, r := range k {
				last = m.press(screen.Key{Char: r})
			}
		case screen.KeyName:
			last = m.press(screen.Key{Name: k})
		}
	}
	return last
}

func someJobs(n int) []berthapi.Job {
	var jobs []berthapi.Job
	for i := range n {
		jobs = append(jobs, berthapi.Job{
			Key: fmt.Sprintf("web-%d_default_uid_0", i), Kind: "run sandbox", ID: "abc", Stage: "attach network", WaitsFor: "the CNI plugin bridge",
			StageAge: time.Duration(n-i) * 20 * time.Second, Slow: n-i > 1, Age: time.Minute, Cancelled: i == 1,
		})
	}
	return jobs
}

func TestFrames(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {120, 40}} {
		m := newModel(usual(), size[0], size[1])
		check(t, fmt.Sprintf("usual-%dx%d", size[0], size[1]), m)
	}
	m := newModel(usual(), 80, 24)
	m.last.jobs = someJobs(9)
	press(m, "a", screen.DownKey, screen.DownKey)
	check(t, "jobs-below-80x24", m)
	press(m, "j")
	check(t, "jobs-80x24", m)
	press(m, "?")
	check(t, "help-80x24", m)
	check(t, "narrow-44x10", newModel(usual(), 44, 10))
	check(t, "tiny-30x5", newModel(usual(), 30, 5))
	check(t, "begin-80x24", &model{node: "n", endpoint: "unix:///s", width: 80, height: 24, now: began, interval: time.Second})
}

func TestSorting(t *testing.T) {
	m := newModel(usual(), 80, 24)
	press(m, "c")
	names := func() string {
		var all []string
		for _, r := range m.rows {
			all = append(all, r.pod.Name[:3])
		}
		return strings.Join(all, " ")
	}
	for i, want := range []string{
		"a-v dat cor web", // cpu
		"a-v dat cor web", // memory
		"a-v dat cor web", // network
		"cor a-v dat web", // restarts
		"web cor dat a-v", // age
		"dat a-v web cor", // state: a container of dat does not run
		"a-v dat web cor", // name
	} {
		if got := names(); got != want {
			t.Errorf("by %s the pods are %s, want %s", order(i), got, want)
		}
		press(m, "s")
	}
	if m.order != byCPU {
		t.Errorf("after the last order comes %s", m.order)
	}
	press(m, "S")
	if got := names(); got != "web cor dat a-v" {
		t.Errorf("reversed they are %s", got)
	}
}

func TestFilter(t *testing.T) {
	m := newModel(usual(), 80, 24)
	press(m, "/COREX", screen.BackspaceKey)
	check(t, "filtering-80x24", m)
	press(m, screen.EnterKey)
	if len(m.rows) != 2 || m.rows[0].pod.Name != "coredns-668d6bf9bc-7xk2p" {
		t.Errorf("the filter %q shows %d rows", m.filter, len(m.rows))
	}
	press(m, "/", screen.ClearKey, "postg") // the name of a container
	if len(m.rows) != 3 {
		t.Errorf("the filter %q shows %d rows", m.filter, len(m.rows))
	}
	press(m, screen.EscapeKey)
	if m.filter != "" || m.filtering || len(m.rows) != 8 {
		t.Errorf("without a filter there are %d rows", len(m.rows))
	}
	if got := press(m, "/q"); got != nothing || m.filter != "q" {
		t.Error("q in the filter is a command")
	}
	if got := press(m, screen.InterruptKey); got != quit {
		t.Error("Ctrl-C in the filter does not quit")
	}
	press(m, strings.Repeat("x", 200))
	if len(m.filter) > maxFilter {
		t.Errorf("the filter has %d characters", len(m.filter))
	}
}

// The cursor stays on its row when the order changes, and near it when the row goes.
func TestCursor(t *testing.T) {
	w := usual()
	m := newModel(w, 80, 24)
	press(m, screen.EndKey)
	at := m.rows[m.cursor].id()
	press(m, "S")
	if m.cursor == len(m.rows)-1 || m.rows[m.cursor].id() != at {
		t.Errorf("the cursor is on row %d", m.cursor)
	}
	pod := m.rows[m.cursor].pod.ID
	press(m, "c")
	if r, _ := m.current(); r.container != nil || r.pod.ID != pod {
		t.Error("the cursor has left its pod")
	}
	w.pods, w.all = nil, nil
	m.add(w.sample())
	if _, ok := m.current(); ok || m.cursor != 0 {
		t.Errorf("the cursor is on row %d of none", m.cursor)
	}
	for _, k := range []screen.KeyName{screen.UpKey, screen.DownKey, screen.EndKey, screen.PageDownKey} {
		press(m, k)
	}
	m.render()
}

func TestTarget(t *testing.T) {
	m := newModel(usual(), 80, 24)
	find := func(name string) {
		t.Helper()
		for i, r := range m.rows {
			if r.container == nil && r.pod.Name == name {
				m.cursor = i
				return
			}
		}
		t.Fatalf("there is no pod %s", name)
	}
	find("web")
	if _, c, ok := m.target(); !ok || c.Name != "app" {
		t.Error("the only container is not chosen")
	}
	find("database-0")
	if _, c, ok := m.target(); !ok || c.Name != "postgres" {
		t.Error("the only container that runs is not chosen")
	}
	press(m, screen.DownKey)
	if _, c, ok := m.target(); !ok || c.Name != "exporter" {
		t.Error("the container of the cursor is not chosen")
	}
	find(usual().pods[4].Metadata.Name)
	if _, _, ok := m.target(); ok || !strings.Contains(m.message, "has no container") {
		t.Errorf("the message is %q", m.message)
	}
	m.now = m.now.Add(messageTime)
	if got := m.foot("keys").String(); got != "keys" {
		t.Errorf("after a while the last line is %q", got)
	}
}

// Names come from the API. They must not command the terminal.
func TestHostileNames(t *testing.T) {
	w := &world{}
	p := w.pod("evil\x1b[2J/\x1b]0;title\x07\u202e", true)
	w.container(p, "c\x1b[31m\nnext\r", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.container(p, "--", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.jobs = []berthapi.Job{{Key: "\x1b[H", Kind: "k", Stage: "s\x07", WaitsFor: "\x9b1m"}}
	m := newModel(w, 80, 24)
	m.filter = "\x1b[1m"
	m.link.failure = "\x1b[5m"
	for range 2 {
		m.choose()
		for _, l := range m.render() {
			if strings.ContainsFunc(l.String(), func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' }) {
				t.Errorf("a line is %q", l.String())
			}
		}
		m.filter = ""
	}
	var out strings.Builder
	if err := m.print(&out); err != nil || strings.ContainsAny(out.String(), "\x1b\x07\r") {
		t.Errorf("the printed frame is %q, %v", out.String(), err)
	}
	m.cursor = 0
	press(m, "l")
	if strings.ContainsAny(m.message, "\x1b\x07") {
		t.Errorf("the message is %q", m.message)
	}
	args := execArgs("unix:///s", m.rows[1].pod, m.rows[1].container, []string{"sh"})
	if got := strings.Join(args, " "); !strings.HasPrefix(got, "pod exec -it --endpoint=unix:///s --container=-- "+p+" -- sh") {
		t.Errorf("the shell is %q", got)
	}
}

func TestPrint(t *testing.T) {
	w := usual()
	w.jobs = someJobs(2)
	m := newModel(w, 0, 0)
	press(m, "a")
	var out strings.Builder
	if err := m.print(&out); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/once.txt", out.String())
}

func TestLink(t *testing.T) {
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	var l link
	want := func(seconds int, want string) {
		t.Helper()
		if got, _ := l.status(at(seconds)); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("after %d s the screen says %q, want %q", seconds, got, want)
		}
	}
	want(0, "")
	l.ask(at(0))
	want(1, "")
	want(5, "has not answered for 5s")
	l.answer(at(6), "")
	want(6, "")
	l.connection(at(10), false)
	want(13, "closed the connection 3s ago")
	l.ask(at(13))
	l.answer(at(14), "cannot reach it")
	want(15, "closed the connection 5s ago")
	l.connection(at(17), true)
	l.ask(at(17))
	l.answer(at(17), "")
	want(18, "connected again after 7s")
	want(30, "")
	l.answer(at(31), "a fault")
	want(31, "a fault")
}

func logged(text string) *logBuffer {
	b := newLogBuffer()
	fmt.Fprint(b, text)
	return b
}

func TestLogView(t *testing.T) {
	var out strings.Builder
	for i := range 60 {
		fmt.Fprintf(&out, "line %d\x1b[2J of the log\r\n", i)
	}
	out.WriteString("not yet a whole line")
	m := newModel(usual(), 80, 24)
	m.view, m.log = logView, &logShown{title: "default/web app", buffer: logged(out.String()), follow: true}
	check(t, "log-80x24", m)
	press(m, screen.PageUpKey, screen.UpKey, screen.RightKey)
	check(t, "log-scrolled-80x24", m)
	press(m, screen.HomeKey)
	if m.render(); m.log.first != 0 || m.log.follow {
		t.Errorf("Home goes to line %d", m.log.first)
	}
	press(m, screen.LeftKey, "f")
	fmt.Fprint(m.log.buffer, "\nlast\n")
	if frame := m.render(); frame[22].String() != "last" || m.log.first != 62-22 {
		t.Errorf("the last line is %q, the first %d", frame[22], m.log.first)
	}
	m.log.buffer.end(nil)
	if got := m.render()[0].String(); !strings.HasSuffix(got, "the container has ended") {
		t.Errorf("the title is %q", got)
	}
	if got := press(m, "q"); got != closeLog || m.view != tableView {
		t.Errorf("q is %d", got)
	}
}

// A log without an end, or with endless lines, takes bounded memory.
func TestLogIsBounded(t *testing.T) {
	b := newLogBuffer()
	for i := range 5 * logLines {
		fmt.Fprintf(b, "%d\n", i)
	}
	shown, first, behind := b.window(0, 1)
	if behind != 5*logLines || behind-first > logLines*5/4 || behind-first < logLines || shown[0] != fmt.Sprint(first) {
		t.Errorf("lines %d to %d are kept, the first is %q", first, behind, shown)
	}
	for range 100 {
		fmt.Fprint(b, strings.Repeat("x", 1000))
	}
	fmt.Fprintln(b)
	if shown, _, _ := b.window(behind, 1); len(shown[0]) != logLineBytes {
		t.Errorf("a line has %d bytes", len(shown[0]))
	}
}

func TestHead(t *testing.T) {
	var h head
	fmt.Fprint(&h, "berth: no sh\nsecond\n"+strings.Repeat("x", 5000))
	fmt.Fprint(&h, "more")
	if h.firstLine() != "berth: no sh" || len(h.text) > saidBytes {
		t.Errorf("got %q", h.firstLine())
	}
}

// 500 pods: a frame renders the rows on the screen alone.
func BenchmarkFrameOf500Pods(b *testing.B) {
	w := &world{}
	for i := range 500 {
		w.container(w.pod(fmt.Sprintf("ns/pod-%d", i), true), "app", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	}
	m := newModel(w, 120, 40)
	b.ReportAllocs()
	for b.Loop() {
		m.render()
	}
}
