package bill

import (
	"crypto/sha256"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// The fields of SPDX 2.3 in JSON that are written (https://spdx.github.io/spdx-spec/v2.3/).
type (
	document struct {
		SPDXVersion   string         `json:"spdxVersion"`
		DataLicense   string         `json:"dataLicense"`
		SPDXID        string         `json:"SPDXID"`
		Name          string         `json:"name"`
		Namespace     string         `json:"documentNamespace"`
		Creation      creation       `json:"creationInfo"`
		Packages      []spdxPackage  `json:"packages"`
		Relationships []relationship `json:"relationships"`
	}
	creation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID    string     `json:"SPDXID"`
		Name      string     `json:"name"`
		Version   string     `json:"versionInfo,omitempty"`
		Download  string     `json:"downloadLocation"`
		Analyzed  bool       `json:"filesAnalyzed"`
		Checksums []checksum `json:"checksums,omitempty"`
		Purpose   string     `json:"primaryPackagePurpose,omitempty"`
		Concluded string     `json:"licenseConcluded"`
		Declared  string     `json:"licenseDeclared"`
		Copyright string     `json:"copyrightText"`
		Refs      []external `json:"externalRefs,omitempty"`
		Comment   string     `json:"comment,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	external struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const (
	documentID  = "SPDXRef-DOCUMENT"
	noAssertion = "NOASSERTION"
)

// Document returns the bill of materials of an archive with a name and a digest. The same archive gives the same document.
func Document(name string, archive digest.Digest, creator string, all []Image) any {
	d := &document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: documentID, Name: name,
		Namespace: "https://spdx.org/spdxdocs/berth-image-bundle-" + archive.Encoded(),
		Creation:  creation{Created: newest(all).UTC().Format(time.RFC3339), Creators: []string{"Tool: " + creator}},
	}
	known := map[string]bool{}
	for i := range all {
		d.image(&all[i], known)
	}
	return d
}

// newest is when the newest image was made: the time of the run would differ each time.
func newest(all []Image) time.Time {
	at := time.Unix(0, 0)
	for i := range all {
		if made := all[i].Config.Created; made != nil && made.After(at) && made.Year() < 10000 {
			at = *made
		}
	}
	return at
}

func (d *document) image(img *Image, known map[string]bool) {
	p := spdxPackage{
		SPDXID: "SPDXRef-Image-" + img.Digest.Encoded(), Name: img.Digest.String(), Version: img.Digest.String(), Purpose: "CONTAINER",
		Checksums: checksums(img.Digest),
		Comment:   img.Kind() + "; names: " + strings.Join(img.Names, " "),
	}
	layerPurpose := "ARCHIVE"
	if img.ArtifactType != "" {
		p.Purpose, layerPurpose = "OTHER", "FILE"
	}
	if img.Fault != nil {
		p.Comment += "; its packages could not be read: " + clean(img.Fault.Error())
	}
	for _, name := range img.Names {
		if named, err := reference.ParseNormalizedNamed(name); err == nil {
			p.Name = name
			if _, ok := named.(reference.Digested); !ok {
				break
			}
		}
	}
	if named, err := reference.ParseNormalizedNamed(p.Name); err == nil {
		p.Refs = purl("pkg:oci/" + url.PathEscape(lastOf(reference.Path(named))) + "@" + url.QueryEscape(img.Digest.String()) +
			"?repository_url=" + url.QueryEscape(named.Name()))
	}
	d.add(p)
	d.relate(documentID, "DESCRIBES", p.SPDXID)
	related := map[string]bool{} // an image may have a layer twice
	for _, l := range img.Layers {
		id := "SPDXRef-Layer-" + l.Digest.Encoded()
		if related[id] {
			continue
		}
		related[id] = true
		if !known[id] {
			known[id] = true
			d.add(spdxPackage{
				SPDXID: id, Name: l.Digest.String(), Purpose: layerPurpose, Checksums: checksums(l.Digest),
				Comment: fmt.Sprintf("layer, %d bytes, %s", l.Size, clean(l.MediaType)),
			})
		}
		d.relate(p.SPDXID, "CONTAINS", id)
	}
	for _, installed := range img.Packages {
		id := fmt.Sprintf("SPDXRef-Package-%x", sha256.Sum256(fmt.Appendf(nil, "%s %q", img.System["ID"], installed)))
		if !known[id] {
			known[id] = true
			d.add(spdxPackage{SPDXID: id, Name: installed.Name, Version: installed.Version, Refs: purl(img.purl(installed))})
		}
		d.relate(p.SPDXID, "CONTAINS", id)
	}
}

// Kind is, for people, the platform of an image or the type of an artifact.
func (img *Image) Kind() string {
	if img.ArtifactType != "" {
		return "OCI artifact " + clean(img.ArtifactType)
	}
	parts := []string{img.Platform.OS, img.Platform.Architecture, img.Platform.Variant}
	return "platform " + strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
}

// purl is the package URL of an installed package.
func (img *Image) purl(p Package) string {
	vendor := img.System["ID"]
	if vendor == "" {
		vendor = map[string]string{"deb": "debian", "apk": "alpine"}[p.Type]
	}
	text := "pkg:" + p.Type + "/" + url.PathEscape(vendor) + "/" + url.PathEscape(p.Name) + "@" + url.PathEscape(p.Version) + "?arch=" + url.QueryEscape(p.Architecture)
	if version := img.System["VERSION_ID"]; version != "" {
		text += "&distro=" + url.QueryEscape(vendor+"-"+version)
	}
	return text
}

func purl(locator string) []external { return []external{{"PACKAGE-MANAGER", "purl", locator}} }

func lastOf(p string) string { return p[strings.LastIndex(p, "/")+1:] }

func checksums(dgst digest.Digest) []checksum {
	return []checksum{{strings.ToUpper(dgst.Algorithm().String()), dgst.Encoded()}}
}

func (d *document) add(p spdxPackage) {
	p.Download, p.Concluded, p.Declared, p.Copyright = noAssertion, noAssertion, noAssertion, noAssertion
	d.Packages = append(d.Packages, p)
}

func (d *document) relate(from, kind, to string) {
	d.Relationships = append(d.Relationships, relationship{from, kind, to})
}
