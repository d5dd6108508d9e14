package top

import (
	"fmt"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/printable"
)

// jobPanel is the oldest jobs, below the pods. It is empty if there is no job.
func (m *model) jobPanel() []screen.Line {
	if m.last == nil || len(m.last.jobs) == 0 {
		return nil
	}
	jobs := m.last.jobs
	shown := min(len(jobs), max(m.height/5, 2))
	lines := []screen.Line{m.jobHeader()}
	for i := range shown {
		lines = append(lines, m.jobLine(&jobs[i]))
	}
	if shown < len(jobs) {
		lines = append(lines, screen.Text(fmt.Sprintf(" %d more; j shows all", len(jobs)-shown), screen.Dim))
	}
	return lines
}

// The columns of jobs whose width does not depend on the terminal's.
const (
	jobWidth   = 16
	stageWidth = 16
	sinceWidth = 11
)

// jobRooms are the widths of the key, and of what a job waits for.
func (m *model) jobRooms() (key, waits int) {
	room := max(m.width-1-jobWidth-1-1-stageWidth-1-sinceWidth-1, 2)
	return room - room/2, room / 2
}

func (m *model) jobHeader() screen.Line {
	key, waits := m.jobRooms()
	return screen.Text(" "+screen.Left("JOB", jobWidth)+" "+screen.Left("OBJECT", key)+" "+screen.Left("STAGE", stageWidth)+" "+screen.Left("SINCE", sinceWidth)+" "+screen.Left("WAITS FOR", waits), screen.Bold)
}

func (m *model) jobLine(j *berthapi.Job) screen.Line {
	key, waits := m.jobRooms()
	kind, since := jobWords(j)
	st := screen.Plain
	if j.Slow {
		st = screen.Warn
	}
	return screen.Text(" "+screen.Left(printable.Text(kind), jobWidth)+" "+screen.Left(printable.Text(j.Key), key)+" ", screen.Plain).
		Add(screen.Left(printable.Text(j.Stage), stageWidth)+" "+screen.Left(since, sinceWidth), st).
		Add(" "+screen.Left(show.Or(printable.Text(j.WaitsFor)), waits), screen.Plain)
}

// jobWords are what a job does, and how long its stage takes, as `berth jobs` shows them.
func jobWords(j *berthapi.Job) (kind, since string) {
	kind, since = j.Kind, show.Age(j.StageAge)
	if j.Cancelled {
		kind += " (cancelled)"
	}
	if j.Slow {
		since += " (slow)"
	}
	return kind, since
}

func (m *model) renderJobs() []screen.Line {
	lines := append(m.head(), m.jobHeader())
	room := m.height - len(lines) - 1
	var jobs []berthapi.Job
	if m.last != nil {
		jobs = m.last.jobs
	}
	m.jobOffset = max(min(m.jobOffset, len(jobs)-room), 0)
	for i := m.jobOffset; i < min(m.jobOffset+room, len(jobs)); i++ {
		lines = append(lines, m.jobLine(&jobs[i]))
	}
	switch {
	case m.last != nil && m.last.noJobs:
		lines = append(lines, screen.Text(" this runtime is not berth: it does not list its jobs", screen.Dim))
	case len(jobs) == 0:
		lines = append(lines, screen.Text(" no job runs", screen.Dim))
	}
	return append(screen.Fill(lines, m.height-1), m.foot("q back  Up Down scroll  ? help"))
}
