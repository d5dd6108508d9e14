package crash

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// allStages are the stages that a job may be in, as the daemon names them. If the daemon's log has
// a stage that is not here, the test fails.
func allStages() []string {
	return []string{
		"begin", "wait for the job before", "write record", "create sandbox", "wait for the network", "attach network",
		"start sandbox", "publish", "find image", "create container", "adjust the OCI spec", "ask plugins", "start container", "kill what was started",
		"remove what an earlier attempt left", "send stop signal", "wait for exit", "kill", "end containers",
		"stop sandbox", "report to plugins", "detach network", "release sandbox", "remove sandbox", "remove container", "delete record",
	}
}

const stageEnded = "ended"

// stageTable counts the stages of jobs at kills. It reads the daemon's log, where a job logs each
// stage before its work begins. The last entries before the kill are the jobs' stages.
type stageTable struct {
	path   string
	offset int64
	// open is the stage of each job, by id and kind.
	open map[string]string

	mu    sync.Mutex
	hits  map[string]map[Kind]int
	jobs  map[string]bool // "run sandbox: publish" seen at kills
	alien []string
}

func newStageTable(log string) *stageTable {
	return &stageTable{path: log, open: map[string]string{}, hits: map[string]map[Kind]int{}, jobs: map[string]bool{}}
}

var stageLine = regexp.MustCompile(`msg="job stage" job=("[^"]*"|\S+) key=(\S+) id=(\S+) stage=("[^"]*"|\S+)`)

// read follows the log up to a size.
func (s *stageTable) read(size int64) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	data := make([]byte, size-s.offset)
	if _, err := f.ReadAt(data, s.offset); err != nil {
		return err
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	s.offset += int64(whole)
	lines := bufio.NewScanner(bytes.NewReader(data[:whole]))
	lines.Buffer(nil, len(data)+1)
	for lines.Scan() {
		m := stageLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		job, stage := strings.Trim(m[1], `"`), strings.Trim(m[4], `"`)
		key := job + " " + m[3]
		if stage == stageEnded {
			delete(s.open, key)
			continue
		}
		s.open[key] = job + ": " + stage
	}
	return lines.Err()
}

// size is how far the log is written.
func (s *stageTable) size() int64 {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// killed counts the stages of the jobs that were under way at this length of the log, and returns
// them. The daemon's jobs die with it.
func (s *stageTable) killed(kind Kind, size int64, daemonDied bool) ([]string, error) {
	if err := s.read(size); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var at []string
	for _, full := range s.open {
		at = append(at, full)
		_, stage, _ := strings.Cut(full, ": ")
		if s.hits[stage] == nil {
			s.hits[stage] = map[Kind]int{}
			if !slices.Contains(allStages(), stage) {
				s.alien = append(s.alien, stage)
			}
		}
		s.hits[stage][kind]++
		s.jobs[full] = true
	}
	if daemonDied {
		s.open = map[string]string{}
	}
	slices.Sort(at)
	return at, nil
}

// missing names a stage that was hit less often than that, "" if there is none.
func (s *stageTable) missing(each int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stage := range allStages() {
		sum := 0
		for _, n := range s.hits[stage] {
			sum += n
		}
		if sum < each {
			return stage
		}
	}
	return ""
}

// unknown are stages that the daemon logged and allStages lacks.
func (s *stageTable) unknown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.alien)
}

// String is the table of stages and kills.
func (s *stageTable) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	kinds := []Kind{Daemon, Supervisor, Keeper, DaemonSupervisor, All}
	var b strings.Builder
	fmt.Fprintf(&b, "%-38s", "jobs in stage when it was killed:")
	for _, kind := range kinds {
		fmt.Fprintf(&b, " %18s", kind)
	}
	for _, stage := range append(allStages(), s.alien...) {
		fmt.Fprintf(&b, "\n%-38s", stage)
		for _, kind := range kinds {
			fmt.Fprintf(&b, " %18d", s.hits[stage][kind])
		}
	}
	fmt.Fprintf(&b, "\n%d different stages of different jobs were hit", len(s.jobs))
	return b.String()
}
