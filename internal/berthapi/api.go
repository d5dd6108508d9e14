// Package berthapi is berth's own small gRPC service, beside CRI on the same
// socket, for what CRI has no call for: importing an archive that the client sends,
// exporting images as one, pulling with progress, telling the layers of images and naming
// them, and telling which jobs run.
//
//	service berth.v1.Berth {
//	  rpc ListJobs(google.protobuf.BytesValue) returns (google.protobuf.BytesValue);
//	  rpc PullImage(google.protobuf.BytesValue) returns (stream google.protobuf.BytesValue);
//	  rpc ImportImage(stream google.protobuf.BytesValue) returns (stream google.protobuf.BytesValue);
//	  rpc ImportFile(google.protobuf.BytesValue) returns (stream google.protobuf.BytesValue);
//	  rpc ExportImage(google.protobuf.BytesValue) returns (stream google.protobuf.BytesValue);
//	  rpc ListLayers(google.protobuf.BytesValue) returns (google.protobuf.BytesValue);
//	  rpc TagImage(google.protobuf.BytesValue) returns (google.protobuf.BytesValue);
//	}
//
// Each message is the JSON of a type of this file, except that ImportImage's
// requests after the first and ExportImage's answers are an archive's bytes. So a client needs nothing
// generated, and fields may be added.
//
// The daemon opens no path that a client names. ImportFile names a descriptor of the
// client's: the daemon takes it from the process that the kernel says made the connection,
// as if it had been passed, and reads it when it is a regular file, open for reading, and
// the one that the client means. It refuses with State before it reads (it may not see the
// client, which is in another pid namespace, or behind a proxy), and then the client sends
// the archive by ImportImage, as it does to a daemon that does not know ImportFile.
package berthapi

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berthrun/berth/internal/errs"
)

const (
	serviceName = "berth.v1.Berth"

	methodListJobs    = "ListJobs"
	methodPullImage   = "PullImage"
	methodImportImage = "ImportImage"
	methodImportFile  = "ImportFile"
	methodExportImage = "ExportImage"
	methodListLayers  = "ListLayers"
	methodTagImage    = "TagImage"
)

// Job is a running operation.
type Job struct {
	// Key serialises jobs: the CRI name of what is made or unmade.
	Key string `json:"key"`
	// Kind is what is done: "run sandbox".
	Kind string `json:"kind"`
	// ID of the sandbox or container.
	ID string `json:"id,omitempty"`
	// Stage that the job is in, what it waits for there, and for how long.
	Stage    string        `json:"stage"`
	WaitsFor string        `json:"waitsFor,omitempty"`
	StageAge time.Duration `json:"stageAge"`
	// Slow tells that it is there for longer than it should be, and that the log
	// warned of it.
	Slow bool `json:"slow,omitempty"`
	// Age of the job.
	Age time.Duration `json:"age"`
	// Waiters is how many requests wait for it.
	Waiters int `json:"waiters"`
	// Cancelled tells that it was asked to end and cleans up.
	Cancelled bool `json:"cancelled,omitempty"`
}

// JobList answers ListJobs, the oldest job first.
type JobList struct {
	Jobs []Job `json:"jobs"`
}

// Auth is what the registry is told; see image.Auth.
type Auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identityToken,omitempty"`
	RegistryToken string `json:"registryToken,omitempty"`
}

// PullRequest asks for PullImage.
type PullRequest struct {
	Ref  string `json:"ref"`
	Auth Auth   `json:"auth,omitzero"`
}

// ImportRequest is the first message to ImportImage.
type ImportRequest struct {
	// Name for an image that carries none.
	Name string `json:"name,omitempty"`
	// Pin keeps the image from being collected.
	Pin bool `json:"pin,omitempty"`
}

// FileImportRequest asks for ImportFile: all of a file that the client has open.
type FileImportRequest struct {
	ImportRequest
	// Descriptor is its number in the client.
	Descriptor int `json:"descriptor"`
	// Device and Inode are those of the file: the number may mean another by now.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// ExportRequest asks for ExportImage.
type ExportRequest struct {
	// Refs are names or ids of images.
	Refs []string `json:"refs"`
}

// Progress of a pull or an import; see image.Progress.
type Progress struct {
	Stage string `json:"stage"`
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"`
}

// Image is one that was pulled or imported.
type Image struct {
	ID   string   `json:"id"`
	Tags []string `json:"tags,omitempty"`
	Size int64    `json:"size,omitempty"`
}

// Update is what PullImage, ImportImage and ImportFile answer: progress, and at last the images.
type Update struct {
	Progress *Progress `json:"progress,omitempty"`
	Images   []Image   `json:"images,omitempty"`
}

// LayeredImage is an image and those of its layers whose content is there.
type LayeredImage struct {
	ID     string   `json:"id"`
	Tags   []string `json:"tags,omitempty"`
	Layers []Layer  `json:"layers,omitempty"`
}

// Layer is one layer; see image.Layer.
type Layer struct {
	DiffID    string `json:"diffID"`
	Digest    string `json:"digest"`
	MediaType string `json:"mediaType"`
	Size      int64  `json:"size"`
}

// LayerList answers ListLayers.
type LayerList struct {
	Images []LayeredImage `json:"images"`
}

// TagRequest asks for TagImage: more names for the image that Image means, by name or id.
type TagRequest struct {
	Image string   `json:"image"`
	Names []string `json:"names"`
}

// message makes the wire form of v.
func message(v any) (*wrapperspb.BytesValue, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %T: %w", v, err)
	}
	return wrapperspb.Bytes(data), nil
}

// read decodes the wire form into v.
func read(msg *wrapperspb.BytesValue, v any) error {
	if err := json.Unmarshal(msg.GetValue(), v); err != nil {
		return fmt.Errorf("cannot decode %T: %w: %w", v, errs.Invalid, err)
	}
	return nil
}
