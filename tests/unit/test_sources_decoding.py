"""Bytes to text."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.sources.base import Parsed, ParseRequest, Refused
from infra.sources.decoding import blank, clean, decode, detect
from infra.sources.html import parse_html
from infra.sources.listing import split_codec
from infra.sources.tabular import parse_csv, parse_json, parse_json_lines
from infra.sources.text import parse_markdown, parse_text
from memagent.config import IngestConfig
from memagent.errors import SourceError

LANGUAGES = {
    "english": ("cp1252", "The “Seller” – for £5 – agrees that this agreement is governed by law. "),
    "french": ("cp1252", "Le présent contrat est régi par le droit français à l'exception des cas prévus. "),
    "german": ("cp1252", "Änderungen bedürfen der Schriftform; mündliche Abreden gelten nicht für Geschäfte. "),
    "spanish": ("cp1252", "El presente contrato se regirá por la legislación española durante el año. "),
    "swedish": ("cp1252", "Detta avtal träder i kraft när båda parter har undertecknat det för att gälla. "),
    "polish": ("cp1250", "Zażółć gęślą jaźń. Umowa została zawarta pomiędzy stronami w Łodzi. "),
    "czech": ("cp1250", "Tato smlouva se řídí právem České republiky. Smluvní strany jsou oprávněny. "),
    "hungarian": ("cp1250", "Ez a szerződés a magyar jog hatálya alá tartozik. A felek kijelentik az őszi. "),
    "turkish": ("cp1254", "Bu sözleşme Türk hukukuna tabidir. Taraflar, işbu sözleşmeyi imzalamaya yetkilidir. "),
    "russian": ("cp1251", "Договор заключён между сторонами в городе Москва. "),
    "russian-koi8": ("koi8_r", "Договор заключён между сторонами в городе Москва. "),
    "greek": ("cp1253", "Η σύμβαση υπογράφηκε στην Αθήνα από τα δύο μέρη σήμερα το πρωί. "),
    "hebrew": ("cp1255", "חוזה זה נחתם בין הצדדים בתל אביב היום בבוקר ויהיה בתוקף שנה אחת. "),
    "japanese": ("cp932", "これは契約書です。甲と乙は次のとおり合意する。"),
    "chinese": ("gb18030", "本合同由甲乙双方在北京签订。双方同意如下条款。"),
    "korean": ("cp949", "이 계약은 서울에서 체결되었다. 양 당사자는 다음과 같이 합의한다. "),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_legacy_encodings_are_read_when_sure(language: str) -> None:
    encoding, text = LANGUAGES[language]
    assert decode((text * 3).encode(encoding))[0] == text * 3


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_utf8_is_never_mistaken(text: str) -> None:
    assert decode(text.encode("utf-8")) == (clean(text.removeprefix("\ufeff")), "utf-8")


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), min_size=8))
def test_utf16_needs_no_mark(text: str) -> None:
    for encoding in ("utf-16-le", "utf-16-be", "utf-16"):
        assert decode(text.encode(encoding))[0] == text


@given(st.text())
def test_clean_text_is_fit_for_tables_and_stays_so(text: str) -> None:
    once = clean(text)
    once.encode("utf-8")
    assert "\r" not in once and "\0" not in once
    assert clean(once) == once


@given(st.binary(max_size=400))
def test_any_bytes_are_text_or_a_reason(data: bytes) -> None:
    try:
        text, encoding = decode(data)
    except SourceError as error:
        assert error.reason in ("binary", "encoding")
    else:
        assert text == clean(text)
        assert encoding


def test_a_nul_after_many_spaces_is_no_utf16() -> None:
    line = b" " * 2_001 + b'\0{"text": "one"}'
    assert detect(b'{"text": "good"}\n' + line + b'\n{"text": "good"}\n') == "utf-8"


def test_what_is_replaced_stays_visible() -> None:
    assert clean("a\0b\ud800c\ud83d\ude00\r\n\r") == "a\ufffdb\ufffdc😀\n\n"
    assert decode("grün ".encode() * 10 + b"\xff")[0] == "grün " * 10 + "\ufffd"


SAID = "The landlord’s fee is €500, the deposit £1,000 – or more"


@pytest.mark.parametrize("wrong", ["…".encode()[:2], b" caf\xe9", b" caf\xe9, 20\xb0C"])
def test_few_wrong_bytes_make_no_other_encoding_of_a_short_text(wrong: bytes) -> None:
    text, encoding = decode(SAID.encode() + wrong)
    assert text.startswith(SAID) and "\ufffd" in text and encoding == "utf-8"


@pytest.mark.parametrize(
    ("encoding", "row"),
    [
        ("cp1251", "{}.05.2025;40702810500000{};Оплата по счету;{}.00;Возврат"),
        ("cp1253", "{}/05/2025;GR16011012500000{};Ενοίκιο;{},00;Επιστροφή"),
        ("cp1255", "{}/05/2025;GR16011012500000{};שכירות;{},00;לא שולם"),
    ],
)
def test_tables_of_numbers_are_known_by_their_few_words(encoding: str, row: str) -> None:
    table = "".join(f"{row.format(10 + number % 18, 1_000 + 7 * number, 97 * number)}\n" for number in range(99))
    assert decode(table.encode(encoding)) == (table, encoding)


def test_a_guessed_encoding_is_said_where_letters_depend_on_it() -> None:
    request = ParseRequest("a.txt", IngestConfig())
    for data, said in [("naïve".encode("cp1252"), "cp1252"), ("naïve".encode(), ""), (b"plain", "")]:
        for parse in (parse_text, parse_markdown, parse_html, parse_json):
            (document,) = parse(io.BytesIO(data), request)
            assert len(document.warnings) == bool(said) and said in "".join(document.warnings)
    plain, other = parse_csv(io.BytesIO("text\nplain\nnaïve\n".encode("cp1252")), request)
    assert not plain.warnings and "guessed: cp1252" in other.warnings[0]


def test_a_declared_encoding_comes_after_utf8() -> None:
    assert decode("é".encode(), "latin-1")[0] == "é"
    assert decode("кот".encode("koi8-r"), "koi8-r") == ("кот", "koi8-r")
    with pytest.raises(SourceError, match="encoding"):
        decode(bytes(range(128, 250)), "no-such-encoding")


def test_a_beginning_may_end_within_a_character() -> None:
    assert detect("aé".encode()[:-1], complete=False) == "utf-8"


def test_blank() -> None:
    assert blank(" \n\u200b\ufeff\0") and blank("")
    assert not blank(" \u200bx")


def test_codecs_are_told_by_suffix() -> None:
    assert split_codec("a.txt.gz") == ("a.txt", "gzip")
    assert split_codec("a.TXT.ZST") == ("a.TXT", "zstd")
    assert split_codec("a.txt") == ("a.txt", None)
    assert split_codec(".gz") == (".gz", None)


def request(**options: object) -> ParseRequest:
    return ParseRequest("x", IngestConfig.model_validate(options))


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# One #\ntext", "One"),
        ("text\n\n## Two\n", "Two"),
        ("```\n# code\n```\n# Three", "Three"),
        ("#no heading\n    # code", ""),
        ("# C#\n", "C#"),
        ("# ##\n## Five \t##\t", "Five"),
        ("#\tSix", "Six"),
    ],
)
def test_the_first_heading_is_the_title(text: str, title: str) -> None:
    (parsed,) = parse_markdown(io.BytesIO(text.encode()), request())
    assert (parsed.text, parsed.title) == (text, title)


def test_bad_rows_are_told_one_by_one() -> None:
    data = b'text,n\n"a\nb",1\n\xe9\xe9,2\nonly\nc,3\n'
    rows = list(parse_csv(io.BytesIO(data), request()))
    assert [(r.row, r.text) if isinstance(r, Parsed) else (r.row, r.reason) for r in rows] == [
        ("1", "a\nb"),
        ("2", "éé"),
        ("3", "ragged"),
        ("4", "c"),
    ]


def test_a_late_wrong_byte_costs_one_row() -> None:
    filler = b'{"text": "%s"}\n' % (b"x" * 1000)
    data = filler * 1100 + b'{"text": "\xff"}\n' + filler
    rows = list(parse_json_lines(io.BytesIO(data), request()))
    assert len(rows) == 1102
    assert [(row.row, row.reason) for row in rows if isinstance(row, Refused)] == [("1101", "encoding")]


def test_a_table_without_the_column_is_one_refusal() -> None:
    data = b'{"body": 1}\n' * 5000
    with pytest.raises(SourceError, match="no-column"):
        list(parse_json_lines(io.BytesIO(data), request()))
    mixed = b'{"body": 1}\n' * 50 + b'{"text": "x"}\n'
    rows = list(parse_json_lines(io.BytesIO(mixed), request()))
    assert sum(isinstance(row, Refused) for row in rows) == 50


def test_ids_and_titles_come_from_their_columns() -> None:
    data = b"key;text;name\n7;seven;Seven\n8;eight;\n7;again;\n;none;\n"
    rows = list(parse_csv(io.BytesIO(data), request(id_column="key", title_column="name")))
    assert [(r.row, r.title) for r in rows if isinstance(r, Parsed)] == [("7", "Seven"), ("8", "")]
    assert [(r.row, r.reason) for r in rows if isinstance(r, Refused)] == [("3", "duplicate-id"), ("4", "missing-id")]


def test_texts_of_a_table_have_a_limit_together() -> None:
    data = b"text\n" + b"0123456789\n" * 20
    with pytest.raises(SourceError, match="too-large"):
        list(parse_csv(io.BytesIO(data), request(max_bytes=100)))


def test_the_limit_of_a_field_is_put_back() -> None:
    before = csv.field_size_limit()
    assert len(list(parse_csv(io.BytesIO(b"text\nseven\n"), request(max_bytes=100)))) == 1
    assert csv.field_size_limit() == before


_SAID = {
    "de": "Der Käufer schuldet dem Verkäufer die fällige Überweisung; größere Mängel müssen schriftlich gerügt werden.",
    "pl": "Strony ustalają, że każda spółka z ograniczoną odpowiedzialnością zapłaci żądaną kwotę w ciągu 30 dni.",
    "cs": "Kupující je povinen zaplatit žádanou částku do třiceti dnů ode dne doručení faktury; později se účtují.",
    "fr": "La redevance de 500 € est due le premier jour du mois; l'œuvre reste la propriété de l'éditeur.",
    "ru": "Покупатель обязан оплатить товар в течение тридцати дней со дня получения счёта.",
    "capitals": "ООО «РосСтройМонтаж», ПАО «СберБанк», г. Москва, ул. Ленина, д. 5",
    "units": "Мощность: 5 кВт, потребление составило 312 кВт·ч",
    "statistics": "Data are presented as mean±SD. Student's t-test was used. " * 20,
    "code": "Die KundenÜbersicht liegt im Ordner.",
    "sizes": "大きさ（長×寬×高）：30×20×10",
    "Chinese sizes": "尺寸（长×宽×高）：30×20×10厘米，重量2公斤。",
    "sizes in letters": "Paket L×B×H: 30×20×10 cm für Größe M, Paul Miller†, John Smith‡, Name¦Straße¦Ort",
    "Irish": "Poblacht na hÉireann, Rialtas na hÉireann",
    "names": "Koncert: Antonín Dvořák i Rusałka. Są jeszcze wolne miejsca.",
    "hu": "A vevő köteles a számla kézhezvételétől számított harminc napon belül megfizetni az összeget.",
    "signs": "“Never” – said the ‘buyer’ … it’s 5 €, naïve café • §3 ©2019 ½ cup, 25 °C, 5 m², ±3%",
}


@pytest.mark.parametrize(
    ("said", "encodings"),
    [
        ("de", "cp1252 cp850 cp437 mac_roman iso8859-15"),
        ("pl", "cp1250 iso8859-2 cp852"),
        ("cs", "cp1250 iso8859-2 cp852"),
        ("fr", "cp1252 iso8859-15 mac_roman"),
        ("ru", "cp1251 koi8-r iso8859-5 mac_cyrillic cp866"),
        ("hu", "cp1250 iso8859-2 cp852"),
        ("signs", "cp1252"),
        ("capitals", "cp1251"),
        ("units", "cp1251 koi8-r"),
        ("statistics", "cp1252"),
        ("code", "cp1252"),
        ("sizes", "cp932"),
        ("Chinese sizes", "gb18030"),
        ("sizes in letters", "cp1252"),
        ("Irish", "cp1252"),
        ("names", "cp1250"),
    ],
)
def test_code_pages_of_older_systems_are_told_apart_by_what_they_say(said, encodings):
    for encoding in encodings.split():
        assert decode(_SAID[said].encode(encoding))[0] == _SAID[said], encoding


def test_no_encoding_is_better_than_one_that_makes_signs_of_letters():
    with pytest.raises(SourceError, match="encoding unknown"):
        decode("Þorsteinn greiðir þrjátíu þúsund krónur ".encode("cp861") * 4 + b"\x81\x8d\x9d")
