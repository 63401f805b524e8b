"""Labelled letters to a shop, made of templates: what checkpoints are calibrated on, and measured on.

Templates are split, not letters: no sentence that is measured was seen, with another thing in it, when temperatures
were fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOPICS = ("delivery", "billing", "returns", "account")

CHOICE = {
    "type": "choice",
    "instructions": "What is this message to a shop about?",
    "criteria": {
        "delivery": "when or whether a parcel arrives",
        "billing": "a payment, an invoice or a price",
        "returns": "sending something back or exchanging it",
        "account": "a login, a password or personal details",
    },
}
NOUL = {"type": "noul", "instructions": "The customer writes about a payment, an invoice or a price."}
SCORE = {
    "type": "score",
    "instructions": "How upset is the customer?",
    "criteria": ["calm and friendly", "somewhat annoyed", "furious"],
}

THINGS = {
    "en": ("lamp", "tent", "kettle", "jacket", "guitar", "bicycle pump", "coffee table", "camera", "rug", "backpack"),
    "de": ("Lampe", "Jacke", "Kamera", "Gitarre", "Kaffeemaschine", "Matratze", "Tasche", "Brille", "Vase", "Decke"),
    "fr": ("lampe", "tente", "veste", "guitare", "table basse", "tasse", "montre", "valise", "chaise", "couette"),
}

# One letter per thing; the first half of each list is for fitting.
ENGLISH = {
    "delivery": (
        "My {} should have come on Monday and the tracking page has not moved since.",
        "Can you tell me which day the courier brings the {}?",
        "The driver left my {} with a neighbour I do not know.",
        "Still waiting for the {}, three weeks after it was shipped.",
        "Has the {} left your warehouse yet?",
        "The parcel with my {} was sent to the wrong city.",
        "I was at home all day and nobody rang to hand over the {}.",
        "Please bring the {} in the evening, I work until six.",
        "According to the carrier my {} was handed over, but the hall is empty.",
        "How long does shipping a {} to the islands take?",
        "The box with the {} is stuck at customs.",
        "Could the {} be dropped at a pick-up point instead of my door?",
        "The {} arrived a week later than you promised.",
        "Where is my {} right now?",
        "Only half of the order came, the {} is missing from the van.",
        "I move next week, send the {} to the new house please.",
    ),
    "billing": (
        "You took the money for the {} twice.",
        "I need an invoice with our tax number for the {}.",
        "The {} was cheaper in the basket than what my card was charged.",
        "My voucher was not subtracted when I paid for the {}.",
        "Why does the receipt for the {} show two different sums?",
        "My bank refused the transfer for the {}, can I pay by card?",
        "I was charged for a {} that I never bought.",
        "Is it possible to pay for the {} in three instalments?",
        "The statement lists the {} at double the price.",
        "Please correct the VAT on the bill for the {}.",
        "A reminder came although I settled the bill for the {} long ago.",
        "What does the {} cost with the student discount?",
        "I still have not got a receipt for the {} I paid.",
        "The amount debited for the {} is in the wrong currency.",
        "Do you accept cheques for the {}?",
        "There is a fee of nine dollars beside the {} I cannot explain.",
    ),
    "returns": (
        "The {} does not fit, I want to send it back.",
        "How do I exchange the {} for a bigger one?",
        "I would like to give back the {} within the thirty days.",
        "The {} is broken and I ask for a replacement.",
        "Please send me a label so that I can return the {}.",
        "I changed my mind about the {}, how can I hand it back?",
        "The {} came in the wrong colour, please swap it.",
        "Can I bring the {} back to your store in town?",
        "My {} stopped working after two days and I want another one.",
        "I posted the {} back to you, has it arrived at your depot?",
        "Who pays the postage if I return the {}?",
        "I opened the box, may I still give the {} back?",
        "The {} is not what the picture showed, take it back please.",
        "Could someone collect the {} that I no longer want?",
        "I got the {} as a gift and would rather have something else.",
        "What is the deadline for sending the {} back?",
    ),
    "account": (
        "I forgot my password and cannot see my order of the {}.",
        "Please delete my profile, I only ever bought a {}.",
        "How do I change the e-mail address I used for the {}?",
        "Somebody else logged in and looked at my {}.",
        "The site says my user name is unknown since I ordered the {}.",
        "I would like to turn off the newsletter that began with the {}.",
        "The code to confirm my sign-in never comes, and I only want to review the {}.",
        "My surname is misspelled in my profile, see the {}.",
        "I have two user accounts, please merge them, the {} is in the older one.",
        "I cannot log in on my phone to look at the {}.",
        "Where do I change my telephone number? I registered when I bought the {}.",
        "My account is locked since I wrote a review of the {}.",
        "How do I switch on two-step sign-in? My {} is in the wish list.",
        "Please tell me which personal data you keep since I bought the {}.",
        "The link to reset my password is dead, I wanted to look up the {}.",
        "My daughter registered with my address to get a {}, please remove her login.",
    ),
}
OTHER_LANGUAGES = {
    "de": {
        "delivery": (
            "Wann kommt meine {} endlich an?",
            "Der Paketbote hat die {} nicht gebracht.",
            "Die Sendung mit der {} steckt seit Tagen fest.",
            "Bitte liefern Sie die {} erst nach 18 Uhr.",
        ),
        "billing": (
            "Die {} wurde zweimal abgebucht.",
            "Ich brauche eine Rechnung für die {}.",
            "Warum war die {} teurer als im Angebot?",
            "Kann ich die {} in Raten bezahlen?",
        ),
        "returns": (
            "Die {} ist kaputt, ich möchte sie umtauschen.",
            "Wie schicke ich die {} zurück?",
            "Die {} passt nicht, bitte nehmen Sie sie zurück.",
            "Bis wann darf ich die {} zurückgeben?",
        ),
        "account": (
            "Ich habe mein Passwort vergessen und sehe die {} nicht.",
            "Bitte löschen Sie mein Konto, ich hatte nur die {} gekauft.",
            "Ich kann mich nicht anmelden, um die {} zu bewerten.",
            "Wie ändere ich meine E-Mail-Adresse? Es geht um die {}.",
        ),
    },
    "fr": {
        "delivery": (
            "Quand est-ce que ma {} sera livrée ?",
            "Le livreur n'est pas passé avec la {}.",
            "Le colis avec la {} est bloqué depuis une semaine.",
            "Merci de livrer la {} à ma nouvelle adresse.",
        ),
        "billing": (
            "La {} a été débitée deux fois.",
            "Il me faut une facture pour la {}.",
            "Le prix de la {} n'est pas celui de l'offre.",
            "Puis-je payer la {} en trois fois ?",
        ),
        "returns": (
            "La {} est cassée, je voudrais l'échanger.",
            "Comment renvoyer la {} ?",
            "La {} ne me plaît pas, je veux la rendre.",
            "Jusqu'à quand puis-je retourner la {} ?",
        ),
        "account": (
            "J'ai oublié mon mot de passe et je ne vois plus la {}.",
            "Supprimez mon compte, je n'ai acheté que la {}.",
            "Je n'arrive pas à me connecter pour noter la {}.",
            "Comment changer mon adresse e-mail ? J'ai commandé la {}.",
        ),
    },
}
MOODS = (
    (
        "Thank you so much for the lovely {}!",
        "Just a quick question about the {}, no hurry at all.",
        "I am very happy with the {}.",
        "Have a nice weekend, and thanks for the help with the {}.",
        "Everything about the {} is fine, I only wanted to say so.",
        "The {} is great, keep up the good work.",
        "Could you kindly tell me more about the {}? Best wishes.",
        "No problem at all about the {}, take your time.",
    ),
    (
        "It is a bit disappointing that the {} is still not sorted.",
        "This is the second time I ask about the {}, please look into it.",
        "I expected better of the {}, to be honest.",
        "The wait for the {} is getting tiresome.",
        "I am not pleased with how the {} was handled.",
        "Not what I hoped for, the {} has scratches.",
        "It is inconvenient that nobody answers about the {}.",
        "I am somewhat annoyed about the {}.",
    ),
    (
        "This is outrageous! The {} is a disgrace and you are thieves!",
        "I have had ENOUGH of your lies about the {}!!!",
        "You people are useless, I will sue you over the {}!",
        "Never again! The {} is garbage and so is your shop!",
        "I am absolutely furious about the {}, how dare you!",
        "Worst company on earth, shove your {}!",
        "Are you completely incompetent? The {} ruined everything!",
        "I demand my {} NOW or you will hear from my lawyer!",
    ),
)


@dataclass(frozen=True)
class Item:
    """A letter, a question about it, and the index of the right option."""

    state: str
    question: dict[str, Any]
    answer: int
    language: str = "en"


def choice_items(*, is_fitting: bool, languages: Sequence[str] = ("en",), things: int = 10) -> list[Item]:
    """Letters and their topics: 4 topics x templates x things."""
    return [
        Item(template.format(thing), CHOICE, topic, language)
        for language in languages
        for topic, template in _templates(language, is_fitting)
        for thing in THINGS[language][:things]
    ]


def noul_items(*, is_fitting: bool, things: int = 10) -> list[Item]:
    """Letters, and whether they are about money; every other one of those that are not is left out."""
    found = []
    for at, (topic, template) in enumerate(_templates("en", is_fitting)):
        is_true = TOPICS[topic] == "billing"
        if is_true or at % 2 == 0:
            found += [Item(template.format(thing), NOUL, int(is_true)) for thing in THINGS["en"][:things]]
    return found


def score_items(*, is_fitting: bool, things: int = 10) -> list[Item]:
    """Letters, and how upset their writers are, 0 to 2."""
    return [
        Item(template.format(thing), SCORE, level)
        for level, templates in enumerate(MOODS)
        for template in _half(templates, is_fitting)
        for thing in THINGS["en"][:things]
    ]


def _templates(language: str, is_fitting: bool) -> list[tuple[int, str]]:
    table = ENGLISH if language == "en" else OTHER_LANGUAGES[language]
    return [(at, template) for at, topic in enumerate(TOPICS) for template in _half(table[topic], is_fitting)]


def _half(templates: Sequence[str], is_fitting: bool) -> Sequence[str]:
    middle = len(templates) // 2
    return templates[:middle] if is_fitting else templates[middle:]
