"""Names of fields whose values are nobody's business."""

# Names that mean a credential wherever they stand. Not what is private in one application and the whole point of
# another (email, phone, name): who looks after failed mails must see to whom they went. Nor a bare `key`, `auth` or
# `pin`: too many harmless things are called so.
SECRET_NAMES = (
    "*password*", "passwd", "*passphrase*", "*secret*", "*token", "*api_key", "*apikey", "*api-key", "*private_key",
    "*privatekey", "*access_key", "*accesskey", "credentials", "*authorization", "*cookie", "card_number", "cardnumber",
    "cvv", "cvc",
)  # fmt: skip
