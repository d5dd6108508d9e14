package podrun

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/crilog"
)

// How much a container can leave behind, as under a kubelet: the end of its file, or the
// last lines of its log.
const (
	maxMessage  = 4096
	maxLogBytes = 2048
	maxLogLines = 80
)

// message is what an ended container wrote to its terminationMessagePath. With
// FallbackToLogsOnError a container that failed and wrote nothing has the end of its log.
func (k *podRun) message(a *attempt, status *runtimeapi.ContainerStatus) string {
	text := tail(podyaml.MessageFile(k.facts.Dir, a.spec.Name, a.n), maxMessage)
	if text != "" || a.spec.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError || status.GetExitCode() == 0 {
		return text
	}
	log := filepath.Join(k.facts.LogDir, a.spec.Name, fmt.Sprintf("%d.log", a.n))
	var lines []string
	for _, line := range strings.Split(tail(log, 4*maxLogBytes), "\n") {
		if parsed, err := crilog.Parse([]byte(line)); err == nil {
			lines = append(lines, string(parsed.Text))
		}
	}
	lines = lines[max(0, len(lines)-maxLogLines):]
	text = strings.Join(lines, "\n")
	return text[max(0, len(text)-maxLogBytes):]
}

// tail reads the last bytes of a file, "" where there is none.
func tail(path string, limit int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	at := max(0, info.Size()-limit)
	buf := make([]byte, min(limit, info.Size()-at))
	n, _ := f.ReadAt(buf, at) // return what could be read
	return strings.TrimSpace(string(buf[:n]))
}
