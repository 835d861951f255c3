// Package echopb is the service of the example, generated from echo.proto by protoc of Debian 12
// (protobuf-compiler) and the plugins that go.mod names as tools. ci/examples checks that the
// generated code is what they make.
package echopb

//go:generate ./generate .
