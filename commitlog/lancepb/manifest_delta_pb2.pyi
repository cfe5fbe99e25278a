from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ManifestDelta(_message.Message):
    __slots__ = ("version", "timestamp_nanos", "reader_feature_flags", "writer_feature_flags", "max_fragment_id", "next_row_id", "transaction_file", "tag", "fragments", "header", "index_section")
    class Fragment(_message.Message):
        __slots__ = ("id", "data_fragment")
        ID_FIELD_NUMBER: _ClassVar[int]
        DATA_FRAGMENT_FIELD_NUMBER: _ClassVar[int]
        id: int
        data_fragment: bytes
        def __init__(self, id: _Optional[int] = ..., data_fragment: _Optional[bytes] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NANOS_FIELD_NUMBER: _ClassVar[int]
    READER_FEATURE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FEATURE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROW_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FILE_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    INDEX_SECTION_FIELD_NUMBER: _ClassVar[int]
    version: int
    timestamp_nanos: int
    reader_feature_flags: int
    writer_feature_flags: int
    max_fragment_id: int
    next_row_id: int
    transaction_file: str
    tag: str
    fragments: _containers.RepeatedCompositeFieldContainer[ManifestDelta.Fragment]
    header: bytes
    index_section: bytes
    def __init__(self, version: _Optional[int] = ..., timestamp_nanos: _Optional[int] = ..., reader_feature_flags: _Optional[int] = ..., writer_feature_flags: _Optional[int] = ..., max_fragment_id: _Optional[int] = ..., next_row_id: _Optional[int] = ..., transaction_file: _Optional[str] = ..., tag: _Optional[str] = ..., fragments: _Optional[_Iterable[_Union[ManifestDelta.Fragment, _Mapping]]] = ..., header: _Optional[bytes] = ..., index_section: _Optional[bytes] = ...) -> None: ...
