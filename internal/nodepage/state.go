package nodepage

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/podusage"
	"github.com/berthrun/berth/internal/printable"
)

// State is the answer of /api/state. All text in it is printable.
type State struct {
	Time     time.Time       `json:"time"`
	Node     string          `json:"node"`
	Instance string          `json:"instance"`
	Version  string          `json:"version"`
	Notices  []string        `json:"notices,omitempty"`
	Pods     []podusage.Pod  `json:"pods"`
	Jobs     []berthapi.Job  `json:"jobs"`
	Stages   []figures.Stage `json:"stages"`
}

// readState is called by one client at a time.
func (p *Page) readState(ctx context.Context) (State, error) {
	reading, err := p.source.Reading(ctx)
	if err != nil {
		return State{}, err
	}
	now := time.Now()
	var earlier *podusage.Reading
	if p.before != nil {
		earlier = p.before.reading
	}
	state := State{
		Time: now, Node: p.source.Node, Instance: p.source.Instance, Version: p.source.Version,
		Pods: podusage.Join(earlier, reading), Jobs: p.source.Jobs(), Stages: p.source.Stages(),
	}
	p.before = &timed{now, reading}
	if p.source.Notices != nil {
		for _, notice := range p.source.Notices() {
			state.Notices = append(state.Notices, printable.Text(notice))
		}
	}
	for i := range state.Pods {
		pod := &state.Pods[i]
		pod.Namespace, pod.Name = printable.Text(pod.Namespace), printable.Text(pod.Name)
		for j := range pod.Containers {
			pod.Containers[j].Name = printable.Text(pod.Containers[j].Name)
		}
	}
	for i := range state.Jobs {
		job := &state.Jobs[i]
		job.Key, job.Stage, job.WaitsFor = printable.Text(job.Key), printable.Text(job.Stage), printable.Text(job.WaitsFor)
	}
	return state, nil
}

// Images is the answer of /api/images.
type Images struct {
	Images []Image      `json:"images"`
	Disk   []FileSystem `json:"disk"`
}

// Image is an image of the store, the largest first. Size is compressed, in bytes.
type Image struct {
	ID      string    `json:"id"`
	Names   []string  `json:"names"`
	Size    int64     `json:"size"`
	Pinned  bool      `json:"pinned"`
	Created time.Time `json:"created"`
}

// FileSystem is what images or containers use of one.
type FileSystem struct {
	Mountpoint string `json:"mountpoint"`
	// Holds is "images" or "containers". A file system of both has two entries.
	Holds  string `json:"holds"`
	Bytes  int64  `json:"bytes"`
	Inodes int64  `json:"inodes"`
}

func (p *Page) readImages(ctx context.Context) (Images, error) {
	stored, err := p.source.Images(ctx)
	if err != nil {
		return Images{}, err
	}
	disk, err := p.source.Disk(ctx)
	if err != nil {
		return Images{}, err
	}
	var all Images
	for i := range stored {
		one := Image{ID: stored[i].ID, Size: stored[i].Size, Pinned: stored[i].Pinned, Created: stored[i].Created, Names: []string{}}
		for _, name := range stored[i].Tags {
			one.Names = append(one.Names, printable.Text(name))
		}
		all.Images = append(all.Images, one)
	}
	slices.SortFunc(all.Images, func(a, b Image) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.ID, b.ID)) })
	for _, u := range disk.Images {
		all.Disk = append(all.Disk, FileSystem{printable.Text(u.Mountpoint), "images", u.Bytes, u.Inodes})
	}
	for _, u := range disk.Containers {
		all.Disk = append(all.Disk, FileSystem{printable.Text(u.Mountpoint), "containers", u.Bytes, u.Inodes})
	}
	return all, nil
}
