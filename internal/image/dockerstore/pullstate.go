package dockerstore

import (
	"fmt"
	"strings"

	"github.com/moby/moby/api/types/jsonstream"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/progress"
)

// pullState is what the messages of a pull say of it.
type pullState struct {
	layers map[string]*layerState
	// last are the last messages, by the id that they are about.
	last map[string]event
	// step is the last message that was news, for people.
	step string
}

// layerState is one layer. Sizes are in bytes, and 0 while unknown.
type layerState struct {
	total, fetched, unpacked int64
	isFetched, isUnpacked    bool
}

type event struct {
	status         string
	current, total int64
}

func newPullState() *pullState {
	return &pullState{layers: map[string]*layerState{}, last: map[string]event{}, step: "ask the registry"}
}

// note takes a message, and reports whether it is news: engines repeat the message of a
// transfer that has stopped.
func (p *pullState) note(message jsonstream.Message) (news bool) {
	now := event{status: message.Status}
	bytes := false
	if detail := message.Progress; detail != nil {
		now.current, now.total = max(detail.Current, 0), max(detail.Total, 0)
		bytes = detail.Units == ""
	}
	if before, ok := p.last[message.ID]; ok && before == now {
		return false
	}
	p.last[message.ID] = now
	p.step = now.describe(message.ID)
	if message.ID != "" {
		p.noteLayer(message.ID, now, bytes)
	}
	return true
}

// describe returns a message for people, such as "Downloading of 5f70bf18a086, 10 of 20".
func (e event) describe(id string) string {
	text := e.status
	if id != "" {
		text += " of " + id
	}
	if e.total > 0 {
		text += fmt.Sprintf(", %d of %d", e.current, e.total)
	}
	return text
}

// noteLayer reads the states through which engines let a layer go. Messages with other words
// are not about a layer, or only say that the pull is alive.
func (p *pullState) noteLayer(id string, now event, bytes bool) {
	switch now.status {
	case "Pulling fs layer", "Waiting":
		p.layer(id)
	case "Downloading":
		layer := p.layer(id)
		layer.fetched, layer.total = now.current, max(now.total, now.current)
	case "Verifying Checksum":
		layer := p.layer(id)
		layer.fetched = layer.total
	case "Download complete":
		p.layer(id).setFetched()
	case "Extracting":
		layer := p.layer(id)
		layer.setFetched()
		if bytes {
			layer.total, layer.unpacked = max(layer.total, now.total), now.current
			layer.fetched = layer.total
		}
	case "Pull complete", "Already exists":
		layer := p.layer(id)
		layer.setFetched()
		layer.isUnpacked, layer.unpacked = true, layer.total
	default:
		if layer := p.layers[id]; layer != nil && strings.HasPrefix(now.status, "Retrying") {
			layer.fetched = 0
		}
	}
}

func (p *pullState) layer(id string) *layerState {
	if p.layers[id] == nil {
		p.layers[id] = &layerState{}
	}
	return p.layers[id]
}

func (l *layerState) setFetched() { l.isFetched, l.fetched = true, l.total }

// progress adds up the layers.
func (p *pullState) progress() image.Progress {
	if len(p.layers) == 0 {
		return image.Progress{Stage: progress.Resolving}
	}
	var total, fetched, unpacked int64
	known, all := true, true
	for _, layer := range p.layers {
		total, fetched, unpacked = total+layer.total, fetched+layer.fetched, unpacked+layer.unpacked
		known = known && (layer.isFetched || layer.total > 0)
		all = all && layer.isFetched
	}
	if all {
		return image.Progress{Stage: progress.Unpacking, Done: unpacked, Total: total}
	}
	if !known {
		total = 0
	}
	return image.Progress{Stage: progress.Fetching, Done: fetched, Total: total}
}

// complete returns an error when the engine has ended the stream too early.
func (p *pullState) complete() error {
	for id, layer := range p.layers {
		if !layer.isFetched {
			return &image.AwayError{Err: fmt.Errorf("the engine ended the pull before it had layer %s: %w", id, errs.Unavailable)}
		}
	}
	return nil
}
