// Package berthapi serves and calls berth's own gRPC service, beside CRI on the same socket,
// for what CRI has no call for: it imports an archive that the client has, exports images as
// one, pulls with progress, lists the layers of images and names images, lists, follows and
// cancels jobs, and profiles the daemon. berthpb/berth.proto describes the service; berthpb has
// the code generated from it. The types here are what commands use and print.
//
// The daemon opens no path that a client names. ImportFile names a file descriptor of the
// client. The daemon duplicates it from the process that made the connection, as the kernel
// reports it, and reads it if it is a regular file, open for reading, and the file that the
// client means. It fails with errs.State before it reads anything if it cannot: the client is
// in another PID namespace, or behind a proxy. Then the client sends the archive with
// ImportImage, as it does to a daemon that does not know ImportFile.
//
// Client and daemon of different versions: a new field or call keeps the protobuf package,
// and both sides ignore what they do not know. A change that one side would misread raises the
// package's number (berth.v2). Then the daemon refuses the calls of an older client with
// errs.Unsupported and a message that says so (v1.go), and an older daemon has no such
// service, which package criclient reports.
package berthapi

import "time"

// Job is a running operation.
type Job struct {
	// Key is the CRI name of the sandbox or container, or the name of content. Jobs with the same
	// key run one after another.
	Key string `json:"key"`
	// Kind is what the job does, such as "run sandbox".
	Kind string `json:"kind"`
	// ID is the id of the sandbox or container, or the digest of content without its algorithm.
	ID string `json:"id,omitempty"`
	// Stage is the stage that the job is in, WaitsFor what it waits for, and StageAge the
	// time since the stage began.
	Stage    string        `json:"stage"`
	WaitsFor string        `json:"waitsFor,omitempty"`
	StageAge time.Duration `json:"stageAge"`
	// Slow reports whether the stage takes longer than expected. The daemon has logged a
	// warning.
	Slow bool `json:"slow,omitempty"`
	// Age is the time since the job began.
	Age time.Duration `json:"age"`
	// Waiters is the number of requests that wait for the job.
	Waiters int `json:"waiters"`
	// Cancelled reports whether the job was asked to stop and cleans up.
	Cancelled bool `json:"cancelled,omitempty"`
	// FetchedBytes is how many bytes the pull of an image has fetched so far, 0 for other jobs.
	FetchedBytes int64 `json:"fetchedBytes,omitempty"`
	// LayerBytes is how many bytes the layers of the image have, 0 until the pull has read its manifest, and for other jobs.
	LayerBytes int64 `json:"layerBytes,omitempty"`
}

// JobList is the running jobs, the oldest first.
type JobList struct {
	Jobs []Job `json:"jobs"`
}

// Auth is the credential for a registry; see image.Auth.
type Auth struct {
	Username      string
	Password      string
	IdentityToken string
	RegistryToken string
}

// PullRequest is the request of PullImage.
type PullRequest struct {
	Ref  string
	Auth Auth
	// Handler is the runtime handler whose pods use the image, "" for none.
	Handler string
}

// ImportRequest is how to import an archive.
type ImportRequest struct {
	// Name is the name for an image that carries none.
	Name string
	// Pin excludes the image from garbage collection.
	Pin bool
}

// FileImportRequest is the request of ImportFile: a file that the client has open.
type FileImportRequest struct {
	ImportRequest
	// Descriptor is the file's descriptor in the client's process.
	Descriptor int
	// Device and Inode identify the file. The descriptor may refer to another one when the
	// daemon duplicates it.
	Device, Inode uint64
}

// ExportRequest is the request of ExportImage.
type ExportRequest struct {
	// Refs are names or ids of images.
	Refs []string
}

// Progress is the progress of a pull or an import, in bytes; see image.Progress.
type Progress struct {
	Stage string
	Done  int64
	Total int64
}

// Image is an image that was pulled or imported. Size is in bytes.
type Image struct {
	ID   string   `json:"id"`
	Tags []string `json:"tags,omitempty"`
	Size int64    `json:"size,omitempty"`
}

// LayeredImage is an image with the layers whose content is present, lowest first.
type LayeredImage struct {
	ID     string   `json:"id"`
	Tags   []string `json:"tags,omitempty"`
	Layers []Layer  `json:"layers,omitempty"`
}

// Layer is one layer; see image.Layer. Size is in bytes.
type Layer struct {
	DiffID    string `json:"diffID"`
	Digest    string `json:"digest"`
	MediaType string `json:"mediaType"`
	Size      int64  `json:"size"`
}

// TagRequest is the request of TagImage: more names for Image, which is a name or an id.
type TagRequest struct {
	Image string
	Names []string
}
